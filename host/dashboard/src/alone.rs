//! Pages that stand alone: sign-in and errors.

use maud::html;

use crate::facts::{Login, Problem};
use crate::frame::alone;
use crate::{address, form};

/// The page at `/login`.
pub fn login(facts: &Login) -> String {
    let next = if address::is_local(&facts.next) { &facts.next } else { "/" };
    let fields = html! {
        input type="hidden" name="next" value=(next);
        p.field {
            label for="token" { "Token" }
            input #token type="password" name="token" autocomplete="current-password" required autofocus
                aria-describedby=[facts.error.as_ref().map(|_| "login-error")];
        }
        p.field { button.primary type="submit" { "Sign in" } }
    };
    let content = html! {
        h1 { "Sign in" }
        p.quiet { "With a token that the service was configured with: " code { "token-file" } " or one of " code { "[[server.tokens]]" } "." }
        @if let Some(error) = &facts.error { p #login-error.fault role="alert" { (error) } }
        (form::post(&facts.form_token, "/login", "fields", fields))
    };
    alone("Sign in", &facts.version, content).into_string()
}

/// An error page.
pub fn problem(facts: &Problem) -> String {
    let content = html! {
        p.status { (facts.status) }
        h1 { (facts.title) }
        p { (facts.detail) }
        p { a href="/" { "To the overview" } }
    };
    alone(&facts.title, &facts.version, content).into_string()
}
