//! The page for prompts, and what came of them in lists.

use std::collections::BTreeMap;

use tilewright_config::Role;
use tilewright_service_api::JobState;

use super::{PLAIN, tags};
use crate::views::{JobsPage, OverviewPage};
use crate::{jobs, prompt, prompt_parts};

/// The attributes of the element with an id.
fn element<'a>(html: &'a str, id: &str) -> BTreeMap<&'a str, &'a str> {
    let found = tags(html).into_iter().find(|tag| tag.attribute("id") == Some(id));
    found.unwrap_or_else(|| panic!("no element {id}")).attributes
}

/// The text of the element with an id, which has no others in it.
fn text_of<'a>(html: &'a str, id: &str) -> &'a str {
    let rest = html.split_once(&format!("id=\"{id}\"")).expect("the element").1;
    rest.split_once('>').and_then(|(_, rest)| rest.split_once('<')).expect("its text").0
}

#[test]
fn a_prompts_form_shows_what_the_model_takes_and_what_was_asked_for() {
    let html = prompt(&PLAIN.prompt_page());
    for (id, usual) in [("width", "1024"), ("steps", "20"), ("cfg", "1"), ("guidance", "3.5"), ("seed", "random")] {
        let field = element(&html, &format!("prompt-{id}"));
        assert_eq!((field.get("placeholder"), field.get("value")), (Some(&usual), None), "{id}");
    }
    assert_eq!(element(&html, "prompt-frames").get("placeholder"), None, "a picture has no frames");
    assert!(html.contains("euler (default)") && html.contains("data-frames=\"81\""), "{html}");
    // A picture comes first, and the prompt and the size come first in the form.
    let place = |text: &str| html.find(text).unwrap_or_else(|| panic!("no {text}"));
    let order = ["id=\"shown\"", "id=\"prompt-text\"", "id=\"prompt-width\"", "id=\"prompt-model\"", "id=\"gallery\""];
    assert!(order.windows(2).all(|pair| place(pair[0]) < place(pair[1])));

    let html = prompt(&PLAIN.prompt_under_way());
    for (id, usual, given) in
        [("width", "832", "768"), ("steps", "20", "28"), ("cfg", "6", "2.5"), ("seed", "random", "4103775")]
    {
        let field = element(&html, &format!("prompt-{id}"));
        assert_eq!((field.get("placeholder"), field.get("value")), (Some(&usual), Some(&given)), "{id}");
    }
    assert_eq!(text_of(&html, "prompt-text"), "\na harbour in the morning, oil on canvas");
    assert_eq!(text_of(&html, "prompt-negative"), "\npeople");
    for chosen in ["dpmpp_2m", "karras", "webp"] {
        assert!(html.contains(&format!("<option value=\"{chosen}\" selected>")), "{chosen}");
    }
    assert!(html.contains("<option value=\"wan-14b\" selected"), "{html}");
}

#[test]
fn what_came_of_prompts_leads_to_the_next() {
    let view = PLAIN.prompt_page();
    let html = prompt(&view);
    for words in ["a lighthouse at dusk", "seed 4103775", "alt=\"a red circle on a blue square\""] {
        assert!(html.contains(words), "{words}");
    }
    for address in [
        "action=\"/actions/jobs/0199a2f0-paint-a/again\"",
        "href=\"/prompt?from=0199a2f0-paint-a#prompt\"",
        "src=\"/jobs/0199a2f0-paint-a/thumbnail\"",
        "src=\"/v1/jobs/0199a2f0-paint-d/result?sample=0\"",
    ] {
        assert!(html.contains(address), "{address}");
    }
    let under_way = prompt(&PLAIN.prompt_under_way());
    assert!(under_way.contains("step 6 of 20") && under_way.contains("/preview?step=6"), "{under_way}");
    for (id, part) in prompt_parts(&view) {
        assert!(html.contains(&part) && tags(&part)[0].attribute("id") == Some(id), "{id}");
    }
    let mut reader = view;
    reader.frame.role = Role::Read;
    let html = prompt(&reader);
    assert!(!html.contains("/again") && !html.contains("?from=") && html.contains("a lighthouse at dusk"), "{html}");
}

#[test]
fn lists_of_jobs_show_pictures_and_prompts() {
    let made = PLAIN.painted("one", JobState::Done, "a cat\nin the sun");
    let mut clip = PLAIN.painted("two", JobState::Done, "a cat");
    clip.job.results[0].content_type = "video/mp4".into();
    let view = vec![made, clip];
    let [all, recent] = [
        jobs(&JobsPage { jobs: view.clone(), ..PLAIN.jobs_page() }),
        super::part(&OverviewPage { recent: view, ..PLAIN.overview() }, "recent"),
    ];
    for html in [all, recent] {
        assert!(html.contains("src=\"/jobs/one/thumbnail\" alt=\"a cat in the sun\""), "{html}");
        assert!(!html.contains("/jobs/two/thumbnail"), "a clip has none");
    }
}
