//! The HTTP interface, version 1. Each handler carries its own description; the whole of it is at
//! `/openapi.json`.

mod conditional;
mod decisions;
mod events;
mod extract;
mod failure_responses;
mod follow;
pub mod form_request;
mod forms;
mod health;
mod jobs;
mod parse_faults;
mod policies;
mod profiles;
mod remote_vae;
mod results;
mod routes;
mod spool;

use axum::{
    Json, Router,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use utoipa::{
    Modify, OpenApi,
    openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{app::App, problem::Problem};

pub use conditional::{Answer, Validators};
pub use events::event_body;
pub use extract::{PathName, QueryParams};
pub use forms::BoundedForm;
pub use jobs::{Submission, accept_submission, cancel, job_not_found, read_submission};
pub use policies::{ReplacementBody, largest_module, pause, policy_body, resume, roll_back, store_module, swap_policy};
pub use results::KEPT;
pub use routes::{device_body, promote, stop};
pub use spool::Spool;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Tilewright",
        description = "Decodes latents of diffusion models under WebAssembly policies that come and go while it works. Times are RFC 3339 in UTC, sizes bytes. \
                       Errors are problem details (RFC 9457). Any request may be answered with 401 where a token is asked for, 421 for a Host header that \
                       the server does not go by, 429 where an address asks too fast, and 503 where there are too many connections."
    ),
    components(schemas(Problem)),
    modifiers(&Token),
    security((), ("token" = []))
)]
struct Description;

struct Token;

impl Modify for Token {
    fn modify(&self, description: &mut utoipa::openapi::OpenApi) {
        let scheme =
            HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some("Where one is configured.")).build();
        description.components.get_or_insert_default().add_security_scheme("token", SecurityScheme::Http(scheme));
    }
}

/// Every route of the interface, with its description.
pub fn router() -> Router<App> {
    let (router, description) = build_router();
    router.route("/openapi.json", axum::routing::get(|| async move { Json(description) }))
}

fn build_router() -> (Router<App>, utoipa::openapi::OpenApi) {
    let router = OpenApiRouter::with_openapi(Description::openapi())
        .routes(routes!(jobs::submit, jobs::list))
        .routes(routes!(jobs::get, jobs::cancel))
        .routes(routes!(follow::events))
        .routes(routes!(results::result))
        .routes(routes!(results::preview))
        .routes(routes!(profiles::get))
        .routes(routes!(remote_vae::decode))
        .routes(routes!(remote_vae::encode))
        .routes(routes!(decisions::of_job))
        .routes(routes!(decisions::list))
        .routes(routes!(routes::models))
        .routes(routes!(routes::devices))
        .routes(routes!(routes::list))
        .routes(routes!(routes::promote))
        .routes(routes!(routes::stop))
        .routes(routes!(policies::list))
        .routes(routes!(policies::get))
        .routes(routes!(policies::upload))
        .routes(routes!(policies::sign))
        .routes(routes!(policies::check))
        .routes(routes!(policies::swap))
        .routes(routes!(policies::roll_back))
        .routes(routes!(policies::pause))
        .routes(routes!(policies::resume))
        .routes(routes!(events::list))
        .routes(routes!(health::alive))
        .routes(routes!(health::ready))
        .routes(routes!(health::metrics));
    let (router, mut description) = router.split_for_parts();
    failure_responses::add_common_responses(&mut description);
    (router, description)
}

/// The answer for an unknown path.
pub async fn not_found() -> Problem {
    Problem::not_found("there is nothing here: see /openapi.json")
}

/// The answer for a method that the path does not take.
pub async fn method_not_allowed() -> Response {
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "this can't be asked for so: see Allow").into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_says_what_it_does_and_how_it_fails() {
        let description = serde_json::to_value(build_router().1).unwrap();
        let mut operations = 0;
        for (path, methods) in description["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                operations += 1;
                let (summary, responses) = (operation["summary"].as_str(), operation["responses"].as_object().unwrap());
                assert!(summary.is_some_and(|summary| summary.len() > 3), "{method} {path}");
                assert!(responses.keys().any(|status| status.starts_with('2')), "{method} {path}");
                assert!(path.starts_with("/healthz") || responses.contains_key("429"), "{method} {path}");
                assert!(path.starts_with("/healthz") || responses.contains_key("500"), "{method} {path}");
                assert_eq!(responses.contains_key("503"), path != "/healthz", "{method} {path}");
                assert_eq!(responses.contains_key("507"), method != "get", "{method} {path}");
                for (status, response) in responses {
                    let words = response["description"].as_str();
                    assert!(words.is_some_and(|words| words.len() > 1), "{method} {path} {status}");
                }
            }
        }
        assert_eq!(operations, 30);
        let text = description.to_string();
        let ids: std::collections::BTreeSet<&str> =
            text.split("\"operationId\":\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert_eq!(ids.len(), operations, "each has a name of its own: {ids:?}");
    }
}
