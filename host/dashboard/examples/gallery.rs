//! Writes the dashboard's pages, with made-up data, into a folder: `cargo run --example gallery --
//! FOLDER`.

use std::{fs, path::Path};

use tilewright_dashboard::{self as dashboard, views};
use tilewright_service_api::{JobResult, JobState};

#[path = "../src/fixture.rs"]
mod fixture;

/// Stands for a result.
const PICTURE: &str = r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1920 1088"><defs><linearGradient id="g" x2="0" y2="1">
<stop stop-color="#274b8f"/><stop offset=".6" stop-color="#e9a36b"/><stop offset="1" stop-color="#3b2a33"/></linearGradient></defs>
<rect width="1920" height="1088" fill="url(#g)"/><circle cx="1300" cy="560" r="120" fill="#ffe9c4"/></svg>"##;

fn main() -> std::io::Result<()> {
    let Some(folder) = std::env::args().nth(1) else {
        return Err(std::io::Error::other("name a folder to write the pages to"));
    };
    let folder = Path::new(&folder);
    fs::create_dir_all(folder.join("assets"))?;
    for asset in dashboard::ASSETS {
        fs::write(folder.join("assets").join(asset.name), asset.body)?;
    }
    fs::write(folder.join("picture.svg"), PICTURE)?;
    let plain = fixture::Fixture(str::to_owned);
    let long = fixture::Fixture(|text| format!("{text}-{}", "unreasonably-long".repeat(6)));
    let mut running = plain.job_page();
    running.job = plain.job("0199a2f0-job", JobState::Running, 0.4);
    let mut waiting = plain.job_page();
    (waiting.job, waiting.traces) = (plain.job("0199a2f0-job", JobState::Queued, 0.0), Vec::new());
    let mut clip = plain.job_page();
    clip.job.job.results = vec![JobResult { sample: 0, bytes: 1_234_567, content_type: "video/mp4".into() }];
    let pages = [
        ("overview", dashboard::overview(&plain.overview())),
        ("empty", dashboard::overview(&plain.empty())),
        ("long", dashboard::overview(&long.overview())),
        ("job", dashboard::job(&plain.job_page())),
        ("sample", dashboard::job(&plain.sample_page())),
        ("job-profiled", dashboard::job(&plain.profiled_page())),
        ("job-running", dashboard::job(&running)),
        ("job-waiting", dashboard::job(&waiting)),
        ("job-clip", dashboard::job(&clip)),
        ("prompt", dashboard::prompt(&plain.prompt_page())),
        ("prompt-under-way", dashboard::prompt(&plain.prompt_under_way())),
        ("prompt-long", dashboard::prompt(&long.prompt_page())),
        ("jobs", dashboard::jobs(&plain.jobs_page())),
        ("policy", dashboard::policy(&plain.policy_page())),
        ("login", dashboard::login(&plain.login())),
        ("problem", dashboard::problem(&plain.problem())),
    ];
    for (name, html) in pages {
        // Files have no root to stand below, and no server answers.
        let html = html.replace("\"/assets/", "\"assets/");
        let mut parts = html.split("src=\"/");
        let mut own = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            own += "src=\"picture.svg\"";
            own += part.split_once('"').map_or("", |(_, rest)| rest);
        }
        let html = own;
        fs::write(folder.join(format!("{name}.html")), html)?;
    }
    Ok(())
}
