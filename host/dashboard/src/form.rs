//! Forms. Each carries the token that shows that it is the service's own.

use maud::{Markup, html};
use tilewright_config::Role;

use crate::views::PageFrame;

/// The field in which every form carries its token.
fn token(token: &str) -> Markup {
    html! { input type="hidden" name="form" value=(token); }
}

/// A form that posts its fields.
pub(crate) fn post(form_token: &str, action: &str, class: &str, fields: Markup) -> Markup {
    html! { form method="post" action=(action) class=(class) { (token(form_token)) (fields) } }
}

/// A form that posts its fields, files among them.
pub(crate) fn upload(form_token: &str, action: &str, class: &str, fields: Markup) -> Markup {
    html! { form method="post" action=(action) enctype="multipart/form-data" class=(class) { (token(form_token)) (fields) } }
}

/// A field with options.
pub(crate) fn choice(id: &str, name: &str, label: &str, options: Markup) -> Markup {
    html! {
        p.field {
            label for=(id) { (label) }
            select id=(id) name=(name) { (options) }
        }
    }
}

/// A box to tick; one that is not ticked sends nothing.
pub(crate) fn tick(id: &str, name: &str, label: Markup, is_ticked: bool) -> Markup {
    html! {
        p.field.tick {
            input id=(id) type="checkbox" name=(name) value="true" checked[is_ticked];
            label for=(id) { (label) }
        }
    }
}

/// The box that has a job profiled.
pub(crate) fn profile(id: &str, is_ticked: bool) -> Markup {
    let label =
        html! { "Profile " span.quiet { "where the time goes; the work is rehearsed first, and takes longer" } };
    tick(id, "profile", label, is_ticked)
}

/// The options of a field, each a value and its words.
pub(crate) fn options<T: AsRef<str>>(all: impl IntoIterator<Item = (T, T)>, chosen: Option<&str>) -> Markup {
    html! {
        @for (value, words) in all {
            option value=(value.as_ref()) selected[chosen == Some(value.as_ref())] { (words.as_ref()) }
        }
    }
}

/// The way to a form, for those who may submit, or the reason why there is none: `no_model`, where
/// `has_model` is false.
pub(crate) fn offered(frame: &PageFrame, has_model: bool, no_model: Markup, form: Markup) -> Markup {
    html! {
        @if frame.role < Role::Submit {
            p.empty { "The token that you signed in with is good for looking only." }
        } @else if has_model { (form) } @else { p.empty { (no_model) } }
    }
}

/// A button that acts at once.
pub(crate) fn act(frame: &PageFrame, action: &str, words: &str, about: &str) -> Markup {
    post(&frame.form_token, action, "act", html! { button type="submit" aria-label=(about) title=(about) { (words) } })
}

/// A button that is asked about first: it opens a second one beside it, which acts. Works by
/// keyboard and without scripts.
pub(crate) fn confirm(frame: &PageFrame, id: &str, action: &str, words: &str, about: &str) -> Markup {
    let answer = html! {
        button.danger type="submit" aria-label={ "Yes: " (about) } { "Yes, " (words.to_lowercase()) }
    };
    html! {
        details.confirm id=(id) {
            summary title=(about) {
                span.ask { (words) "…" }
                span.keep { "Don’t" }
                span.unseen { ": " (about) }
            }
            (post(&frame.form_token, action, "act", answer))
        }
    }
}
