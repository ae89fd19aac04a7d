//! Pages that stand alone: sign-in and errors.

use maud::html;

use crate::frame::standalone;
use crate::views::{LoginPage, ProblemPage};
use crate::{address, form};

/// The page at `/login`.
pub fn login(view: &LoginPage) -> String {
    let next = if address::is_local(&view.next) { &view.next } else { "/" };
    let fields = html! {
        input type="hidden" name="next" value=(next);
        p.field {
            label for="token" { "Token" }
            input #token type="password" name="token" autocomplete="current-password" required autofocus
                aria-describedby=[view.error.as_ref().map(|_| "login-error")];
        }
        p.field { button.primary type="submit" { "Sign in" } }
    };
    let content = html! {
        h1 { "Sign in" }
        p.quiet { "With a token that the service was configured with: " code { "token-file" } " or one of " code { "[[server.tokens]]" } "." }
        @if let Some(error) = &view.error { p #login-error.fault role="alert" { (error) } }
        (form::post(&view.form_token, "/login", "fields", fields))
    };
    standalone("Sign in", &view.version, content).into_string()
}

/// An error page.
pub fn problem(view: &ProblemPage) -> String {
    let content = html! {
        p.status { (view.status) }
        h1 { (view.title) }
        p { (view.detail) }
        p { a href="/" { "To the overview" } }
    };
    standalone(&view.title, &view.version, content).into_string()
}
