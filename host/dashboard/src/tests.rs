//! Properties of every page, whatever its data.

mod profiles;
mod prompts;

use std::collections::{BTreeMap, BTreeSet};

use tilewright_config::Role;
use tilewright_plan::Stage;
use tilewright_service_api::{JobResult, JobState};

use crate::fixture::{Fixture, now};
use crate::views::{
    AnyTrace, Charts, Health, JobPage, JobsPage, LatencySamples, LoginPage, Notice, OverviewPage, PromptPage,
    TimeSeries, Tone,
};
use crate::{
    job, job_parts, jobs, login, overview, overview_parts, policy, policy_parts, problem, prompt, status_parts,
};

const PLAIN: Fixture = Fixture(str::to_owned);
const HOSTILE: Fixture = Fixture(hostile);

fn hostile(text: &str) -> String {
    format!(
        "{text}\"'><script>alert(1)</script><img src=x onerror=alert(1)>&lt;</td></form>\u{202e}\n//evil.example/{{{{"
    )
}

/// An element as it begins or ends.
struct Tag<'a> {
    name: &'a str,
    is_end: bool,
    attributes: BTreeMap<&'a str, &'a str>,
    /// Names of the elements that it is in.
    within: Vec<(&'a str, usize)>,
}

impl<'a> Tag<'a> {
    fn attribute(&self, name: &str) -> Option<&'a str> {
        self.attributes.get(name).copied()
    }

    /// The place of the element that it is in.
    fn inside(&self, name: &str) -> Option<usize> {
        self.within.iter().rev().find(|(outer, _)| *outer == name).map(|(_, place)| *place)
    }
}

const VOID: [&str; 5] = ["!DOCTYPE", "input", "img", "link", "meta"];

/// Every tag of a page. If all text is escaped, each `<` and `>` is a tag's own, and each quote an
/// attribute's.
fn tags(html: &str) -> Vec<Tag<'_>> {
    let mut tags: Vec<Tag<'_>> = Vec::new();
    let mut open: Vec<(&str, usize)> = Vec::new();
    for piece in html.split('<').skip(1) {
        let (inside, text) = piece.split_once('>').expect("a tag ends");
        assert!(!text.contains('>'), "a bare > in {text}");
        let (is_end, inside) = inside.strip_prefix('/').map_or((false, inside), |inside| (true, inside));
        let (name, mut rest) = inside.split_once(' ').unwrap_or((inside, ""));
        let mut attributes = BTreeMap::new();
        while !rest.is_empty() {
            let end = rest.find(['=', ' ']).unwrap_or(rest.len());
            let key = &rest[..end];
            let value =
                rest[end..].strip_prefix("=\"").map_or("", |value| value.split_once('"').expect("a quoted value").0);
            rest =
                rest[end..].strip_prefix("=\"").map_or(&rest[end..], |_| &rest[end + 3 + value.len()..]).trim_start();
            assert!(attributes.insert(key, value).is_none(), "{key} twice in {inside}");
        }
        if is_end {
            assert_eq!(open.pop().map(|(name, _)| name), Some(name), "elements end where they began");
        }
        tags.push(Tag { name, is_end, attributes, within: open.clone() });
        if !is_end && !VOID.contains(&name) {
            open.push((name, tags.len() - 1));
        }
    }
    assert!(open.is_empty(), "{open:?}");
    tags
}

/// Every kind of page, and pages in several states.
fn pages(fixture: &Fixture) -> Vec<(&'static str, String)> {
    let running = JobPage { job: fixture.job("one", JobState::Running, 0.4), ..fixture.job_page() };
    let waiting = JobPage { job: fixture.job("one", JobState::Queued, 0.0), traces: vec![], ..fixture.job_page() };
    let failed = JobPage { job: fixture.job("one", JobState::Failed, 0.0), ..fixture.job_page() };
    let mut clip = fixture.job_page();
    clip.job.job.results = vec![JobResult { sample: 0, bytes: 5, content_type: "video/mp4".into() }];
    let mut noticed = fixture.overview();
    noticed.frame.notice = Some(Notice { tone: Tone::Bad, text: (fixture.0)("refused:\nnot signed") });
    noticed.frame.health = Health::Degraded((fixture.0)("disk full"));
    let bare = OverviewPage { models: vec![], devices: vec![], policies: vec![], ..fixture.empty() };
    vec![
        ("overview", overview(&fixture.overview())),
        ("prompt", prompt(&fixture.prompt_page())),
        ("prompt under way", prompt(&fixture.prompt_under_way())),
        ("no prompts", prompt(&PromptPage { shown: None, gallery: vec![], ..fixture.prompt_page() })),
        (
            "a prompt's job",
            job(&JobPage { job: fixture.painted("one", JobState::Done, "a cat"), ..fixture.job_page() }),
        ),
        ("noticed", overview(&noticed)),
        ("empty", overview(&fixture.empty())),
        ("bare", overview(&bare)),
        ("job", job(&fixture.job_page())),
        ("sample", job(&fixture.sample_page())),
        ("profiled", job(&fixture.profiled_page())),
        ("running", job(&running)),
        ("waiting", job(&waiting)),
        ("failed", job(&failed)),
        ("clip", job(&clip)),
        ("jobs", jobs(&fixture.jobs_page())),
        ("no jobs", jobs(&JobsPage { jobs: vec![], next: None, ..fixture.jobs_page() })),
        ("policy", policy(&fixture.policy_page())),
        ("login", login(&fixture.login())),
        ("problem", problem(&fixture.problem())),
    ]
}

fn each_page(check: impl Fn(&str, &str, Vec<Tag<'_>>)) {
    for fixture in [PLAIN, HOSTILE] {
        for (name, html) in pages(&fixture) {
            check(name, &html, tags(&html));
        }
    }
}

#[test]
fn hostile_texts_make_no_markup() {
    // The same elements with the same attributes come out, whatever the texts say.
    for ((name, plain), (_, hostile)) in pages(&PLAIN).into_iter().zip(pages(&HOSTILE)) {
        assert!(hostile.contains("&lt;script&gt;alert(1)"), "{name}");
        // Lines of a text are paragraphs of their own, and names that are none in a configuration
        // make no links.
        let shape = |html: &str| -> BTreeSet<String> {
            let shape = |tag: &Tag<'_>| format!("{} {:?}", tag.name, tag.attributes.keys().collect::<Vec<_>>());
            tags(html).iter().map(shape).collect()
        };
        let (plain, hostile) = (shape(&plain), shape(&hostile));
        assert!(hostile.is_subset(&plain), "{name}: {:?}", hostile.difference(&plain));
    }
}

#[test]
fn nothing_is_inline_and_nothing_comes_from_elsewhere() {
    each_page(|name, html, tags| {
        for tag in &tags {
            for (key, value) in &tag.attributes {
                assert!(*key != "style" && !key.starts_with("on") && *key != "srcdoc", "{name}: {key}");
                if ["href", "src", "action", "formaction", "data-page"].contains(key) {
                    let is_own = (value.starts_with('/') && !value.starts_with("//")) || value.starts_with('#');
                    assert!(is_own && !value.contains(char::is_control), "{name}: {key}={value}");
                }
            }
            assert!(tag.name != "style" && tag.name != "iframe" && tag.name != "base", "{name}");
            assert!(tag.name != "script" || tag.is_end || tag.attribute("src").is_some(), "{name}: an inline script");
        }
        assert!(!["http-equiv", "http:", "https:"].iter().any(|outside| html.contains(outside)), "{name}");
    });
}

#[test]
fn ids_are_unique_and_what_refers_to_them_finds_them() {
    each_page(|name, _, tags| {
        let mut ids = BTreeSet::new();
        for id in tags.iter().filter_map(|tag| tag.attribute("id")) {
            assert!(!id.is_empty() && !id.contains(char::is_whitespace), "{name}: '{id}'");
            assert!(ids.insert(id), "{name}: {id} twice");
        }
        for tag in &tags {
            for key in ["for", "list", "aria-labelledby", "aria-describedby"] {
                if let Some(id) = tag.attribute(key) {
                    assert!(ids.contains(id), "{name}: {key}={id}");
                }
            }
            if let Some(id) = tag.attribute("href").and_then(|address| address.strip_prefix('#')) {
                assert!(ids.contains(id), "{name}: #{id}");
            }
        }
    });
}

#[test]
fn every_field_has_a_label_and_every_button_a_form_with_its_token() {
    each_page(|name, _, tags| {
        let labelled: BTreeSet<_> =
            tags.iter().filter(|tag| tag.name == "label").filter_map(|tag| tag.attribute("for")).collect();
        let tokens: BTreeSet<usize> = tags
            .iter()
            .filter(|tag| tag.attribute("name") == Some("form") && tag.attribute("type") == Some("hidden"))
            .filter(|tag| tag.attribute("value").is_some_and(|token| token.starts_with("b7e1c0ffee")))
            .filter_map(|tag| tag.inside("form"))
            .collect();
        for (place, tag) in tags.iter().enumerate().filter(|(_, tag)| !tag.is_end) {
            let is_hidden = tag.attribute("type") == Some("hidden");
            match tag.name {
                "input" | "select" | "textarea" if !is_hidden => {
                    let id = tag.attribute("id").unwrap_or_else(|| panic!("{name}: a field without an id"));
                    assert!(labelled.contains(id), "{name}: no label for {id}");
                    assert!(tag.inside("form").is_some() && tag.attribute("name").is_some(), "{name}: {id}");
                }
                // A form that only asks for a page changes nothing, and needs no token.
                "form" if tag.attribute("method") == Some("get") => assert!(!tokens.contains(&place), "{name}"),
                "button" if tag.inside("form").is_some_and(|form| tags[form].attribute("method") == Some("get")) => {}
                "button" => {
                    let form = tag.inside("form").unwrap_or_else(|| panic!("{name}: a button without a form"));
                    assert!(tokens.contains(&form), "{name}: a form without its token");
                    assert_eq!(tag.attribute("type"), Some("submit"), "{name}");
                }
                "form" => {
                    assert!(tokens.contains(&place), "{name}: a form without its token");
                    assert_eq!((tag.attribute("method"), tag.inside("form")), (Some("post"), None), "{name}");
                }
                "img" | "svg" => assert!(
                    tag.attributes.keys().any(|key| ["alt", "aria-label", "aria-hidden"].contains(key)),
                    "{name}: a picture without words"
                ),
                _ => {}
            }
        }
    });
}

#[test]
fn forms_lead_to_what_the_service_answers() {
    const JOB: [&str; 2] = ["cancel", "again"];
    const POLICY: [&str; 4] = ["swap", "rollback", "pause", "resume"];
    const ROUTE: [&str; 2] = ["promote", "stop"];
    let mut found = BTreeSet::new();
    for (name, html) in pages(&PLAIN) {
        for action in tags(&html).iter().filter(|tag| tag.name == "form").filter_map(|tag| tag.attribute("action")) {
            let is_known = match action.split('/').skip(1).collect::<Vec<_>>()[..] {
                ["login" | "jobs"] | ["actions", "submit" | "logout"] => true,
                ["actions", "jobs", _, what] => JOB.contains(&what),
                ["actions", "policies", _, what] => POLICY.contains(&what),
                ["actions", "routes", _, what] => ROUTE.contains(&what),
                _ => false,
            };
            assert!(is_known, "{name}: {action}");
            found.insert(action.rsplit('/').next().unwrap_or_default().to_owned());
        }
    }
    let all = [&["login", "jobs", "submit", "logout"][..], &JOB, &POLICY, &ROUTE].concat();
    assert_eq!(found, all.into_iter().map(str::to_owned).collect(), "each is reached from some page");
    assert!(!overview(&PLAIN.empty()).contains("/actions/logout"), "nothing to sign out of without a token");
}

/// A part of the overview.
fn part(view: &OverviewPage, id: &str) -> String {
    overview_parts(view).into_iter().find_map(|(known, html)| (known == id).then_some(html)).unwrap()
}

#[test]
fn parts_are_elements_with_their_ids_and_as_they_stand_in_their_page() {
    for fixture in [PLAIN, HOSTILE] {
        for view in [fixture.overview(), fixture.empty()] {
            let page = overview(&view);
            for (part, html) in overview_parts(&view) {
                let outer = tags(&html);
                assert_eq!(outer[0].attribute("id"), Some(part));
                assert!(outer.iter().skip(1).all(|tag| !tag.within.is_empty() || tag.is_end), "{part} is one element");
                assert!(page.contains(&html), "{part}");
            }
        }
        let (held, kept) = (fixture.job_page(), fixture.policy_page());
        let mut all = vec![(job(&held), job_parts(&held)), (policy(&kept), policy_parts(&kept))];
        all.push((job(&held), status_parts(&held.frame)));
        for (page, (id, html)) in all.iter().flat_map(|(page, parts)| parts.iter().map(move |part| (page, part))) {
            assert!(page.contains(html) && tags(html)[0].attribute("id") == Some(id), "{id}");
        }
    }
}

#[test]
fn pages_name_themselves_for_live_updates() {
    let page = |html: &str| {
        tags(html).iter().find(|tag| tag.name == "body").and_then(|tag| tag.attribute("data-page")).map(str::to_owned)
    };
    assert_eq!(page(&overview(&PLAIN.overview())).as_deref(), Some("/"));
    assert_eq!(page(&job(&PLAIN.job_page())).as_deref(), Some("/jobs/0199a2f0-job"));
    assert_eq!(page(&policy(&PLAIN.policy_page())).as_deref(), Some("/policies/fast"));
    assert_eq!(page(&login(&PLAIN.login())), None);
    assert_eq!(page(&prompt(&PLAIN.prompt_page())).as_deref(), Some("/prompt"));
    let under_way = page(&prompt(&PLAIN.prompt_under_way()));
    assert_eq!(under_way.as_deref(), Some("/prompt?job=0199a2f0-paint-e"));
}

#[test]
fn clips_play_and_pictures_are_shown() {
    let mut view = PLAIN.job_page();
    let mut shown = |kind: &str| {
        view.job.job.results = vec![JobResult { sample: 0, bytes: 5, content_type: kind.into() }];
        let html = job(&view);
        let found = tags(&html).iter().find(|tag| ["video", "img"].contains(&tag.name)).map(|tag| {
            assert!(tag.name == "img" || tag.attribute("controls").is_some(), "{kind}");
            (tag.name.to_owned(), tag.attribute("src").unwrap_or_default().to_owned())
        });
        assert!(html.contains("Save result 1"), "{kind}");
        found
    };
    let address = "/v1/jobs/0199a2f0-job/result?sample=0".to_owned();
    for kind in ["video/mp4", "video/webm"] {
        assert_eq!(shown(kind), Some(("video".to_owned(), address.clone())), "{kind}");
    }
    for kind in ["image/png", "image/webp", "image/gif"] {
        assert_eq!(shown(kind), Some(("img".to_owned(), address.clone())), "{kind}");
    }
    assert_eq!(shown("video/x-matroska"), None);
    assert!(crate::CONTENT_SECURITY_POLICY.contains("media-src 'self'"));
}

#[test]
fn there_are_buttons_for_what_one_may_do_alone() {
    let actions = |role: Role| -> BTreeSet<String> {
        let mut view = PLAIN.overview();
        view.frame.role = role;
        let html = overview(&view);
        let actions =
            tags(&html).iter().filter_map(|tag| tag.attribute("action")).map(str::to_owned).collect::<Vec<_>>();
        actions.into_iter().map(|action| action.rsplit('/').next().unwrap_or_default().to_owned()).collect()
    };
    let of = |names: &[&str]| -> BTreeSet<String> { names.iter().map(|name| (*name).to_owned()).collect() };
    assert_eq!(actions(Role::Read), of(&["logout"]));
    assert_eq!(actions(Role::Submit), of(&["logout", "submit", "cancel"]));
    assert!(actions(Role::Operate).is_superset(&of(&["swap", "pause", "promote", "cancel", "submit"])));
}

#[test]
fn times_are_told_absolutely_as_well() {
    let view = PLAIN.jobs_page();
    let html = jobs(&view);
    let stamp = crate::units::stamp(crate::units::parse(&view.jobs[0].job.created));
    let spelt = stamp.replace('T', "\u{a0}").replace('Z', "\u{a0}UTC");
    assert!(html.contains(&format!("<time datetime=\"{stamp}\">{spelt}</time>")), "{html}");
    assert!(job(&PLAIN.job_page()).contains("\u{a0}UTC</span>"));
}

#[test]
fn sign_in_leads_only_to_own_pages() {
    let next = |next: &str| login(&LoginPage { next: next.into(), ..PLAIN.login() });
    assert!(next("/jobs/1").contains("name=\"next\" value=\"/jobs/1\""));
    for elsewhere in ["//evil.example", "javascript:alert(1)", "", "/\\evil.example"] {
        assert!(next(elsewhere).contains("name=\"next\" value=\"/\""), "{elsewhere}");
    }
    assert!(!policy(&PLAIN.policy_page()).contains("href=\"javascript"), "a dump is not linked");
}

#[test]
fn lines_to_copy_hold_no_strangers_names() {
    let mut view = PLAIN.empty();
    assert!(overview(&view).contains("{&quot;model&quot;:&quot;flux&quot;}") && !overview(&view).contains("Bearer"));
    view.models = vec!["x\"}'; rm -rf ~; '".into()];
    view.frame.has_token = true;
    let html = overview(&view);
    assert!(html.contains("{&quot;model&quot;:&quot;MODEL&quot;}") && html.contains("Bearer $TOKEN"));
}

#[test]
fn charts_survive_any_numbers() {
    let odd =
        [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -1.0, f64::MAX, f64::MIN_POSITIVE, 5e-324, 1e-300, 1e14, 3.0];
    let mut samples: Vec<Vec<f64>> = odd.iter().map(|value| vec![*value]).collect();
    samples.extend([vec![], vec![3.0, 3.0, 3.0], vec![0.001, 1e11], odd.to_vec(), (0..5000).map(f64::from).collect()]);
    for values in samples {
        let points = |time: std::time::SystemTime| values.iter().map(|value| (time, *value)).collect::<Vec<_>>();
        for time in [now(), std::time::UNIX_EPOCH, now() + std::time::Duration::from_secs(60)] {
            let series = vec![
                TimeSeries { name: "one".into(), points: points(time) },
                TimeSeries { name: "none".into(), points: vec![] },
                TimeSeries { name: "two".into(), points: points(now()) },
            ];
            let latency = LatencySamples { policy: "p".into(), revision: 1, samples_us: values.clone() };
            let work = vec![(Stage::Decode, series.clone()), (Stage::Text, series.clone())];
            let charts = Charts { latency: vec![latency; 9], work, regret: series };
            let html = part(&OverviewPage { charts, ..PLAIN.empty() }, "charts");
            tags(&html);
            assert!(!html.contains("NaN") && !html.contains("inf"), "{values:?}: {html}");
        }
    }
    let empty = part(&PLAIN.empty(), "charts");
    assert!(!empty.contains("<svg") && empty.matches("class=\"empty\"").count() == 3);
    let full = part(&PLAIN.overview(), "charts");
    assert_eq!(full.matches("class=\"plot\"").count(), 4);
    assert!(full.contains("Sampling time") && full.contains("Decode time"), "a chart per stage");
    assert_eq!(full.matches("class=\"median\"").count(), 3, "a row per revision");
    assert_eq!(full.matches("<li>").count(), 6, "a line per route is in the legends");
}

#[test]
fn a_trace_shows_what_it_holds() {
    let mut view = PLAIN.job_page();
    let html = job(&view);
    for words in [
        "Tried and failed",
        "out of memory (412 MiB more were needed)",
        "overlap 64 → 96",
        "over the limit",
        "quickest that fits",
        "tiles have at least 128 pixels",
        "×1.1",
        "4.1\u{a0}µs",
        "the last plan of this size",
        "51.2\u{a0}dB",
        "canary’s share of 10\u{a0}%",
    ] {
        assert!(html.contains(words), "{words}");
    }
    assert_eq!(html.matches("class=\"taken\"").count(), 1);
    let Some(AnyTrace::Vae(trace)) = view.traces.first_mut() else { panic!("a decode's") };
    (trace.record.answer, trace.record.estimate, trace.record.outcome) = (None, None, None);
    trace.record.fallback =
        Some(tilewright_plan::Fallback { reason: tilewright_plan::FallbackReason::Trap, detail: "unreachable".into() });
    (trace.record.attempts, trace.candidates, trace.log, trace.incumbent) = Default::default();
    let html = job(&view);
    for words in [
        "gave no answer",
        "The native default stood in (trap): unreachable",
        "asked for no prices",
        "nothing was measured",
    ] {
        assert!(html.contains(words), "{words}");
    }
    for words in ["Tried and failed", "Logged by the policy", "class=\"taken\"", "Compared"] {
        assert!(!html.contains(words), "{words}");
    }
    view.traces.clear();
    assert!(job(&view).contains("no longer kept"));
    view.job = PLAIN.job("one", JobState::Running, 0.4);
    let html = job(&view);
    assert!(html.contains("Under way") && html.contains("decided by") && !html.contains("ot decided yet"), "{html}");
    (view.job.plan, view.job.decided_by) = (None, None);
    assert!(job(&view).contains("Its policy has not answered yet"));
    view.job = PLAIN.job("one", JobState::Queued, 0.0);
    assert!(job(&view).contains("Not decided yet"));
}

#[test]
fn a_samples_page_has_its_steps_and_what_they_took() {
    let html = job(&PLAIN.sample_page()).replace('\u{a0}', " ");
    for words in [
        "step 6 of 20, 1.25 s a step",
        "6 of 20 steps",
        "latent of 128",
        "20 steps of euler, 1 pass, fastest",
        "57 blocks",
        "Time of a step",
        "1.3 s",
        "Earlier work served 4 runs of the network once more",
        "f32, weights as stored",
    ] {
        assert!(html.contains(words), "{words}");
    }
}
