//! A run that is interrupted says what it kept, and how to go on.

use std::{
    process::{Child, Output, Stdio},
    thread,
    time::Duration,
};

use super::*;

/// Interrupts a run when a file exists; none if it has ended before.
fn interrupt(mut child: Child, file: &Path) -> Option<Output> {
    while !file.exists() {
        if child.try_wait().unwrap().is_some() {
            return None;
        }
        thread::sleep(Duration::from_millis(2));
    }
    let is_sent = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    (is_sent.success() && output.status.code() == Some(130)).then_some(output)
}

#[test]
fn an_interrupted_run_says_how_to_go_on_and_does() {
    let model = fixture("generate-flux");
    let start = |place: &Place, steps: &str, more: &[&str]| {
        let words = ["generate", "a cat", "--model", &model, "--size", "32x32", "--device", "cpu", "--steps", steps];
        place.command(&[&words[..], &["-o", "out.png"], more].concat())
    };
    // More steps where a machine is done with fewer before the signal comes.
    let found = [300_u32, 1200, 4800].iter().find_map(|steps| {
        let (place, steps) = (Place::new(), steps.to_string());
        let child = start(&place, &steps, &["--resume"]).stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = interrupt(child, &place.path("out.png.partial/step.safetensors"))?;
        Some((place, steps, String::from_utf8(output.stderr).unwrap()))
    });
    let (place, steps, said) = found.unwrap();
    let last = said.lines().last().unwrap();
    let how = "error: interrupted; steps are kept in out.png.partial: the same command goes on from them";
    assert!(last.starts_with(how), "{said}");
    assert!(!said.contains("frames"), "{said}");
    let again = crate::program::Run(start(&place, &steps, &["--resume"]).output().unwrap());
    again.succeeded();
    let words = again.stderr();
    assert!(words.contains(&format!(" of {steps} steps are kept from an earlier run")), "{words}");
    assert!(!words.contains("frames"), "{words}");
    assert_eq!(place.files(), ["out.png"]);
    // The same picture as in one go.
    let whole = Place::new();
    assert!(start(&whole, &steps, &[]).output().unwrap().status.success());
    let pixels = |place: &Place| image::open(place.path("out.png")).unwrap().into_rgb8().into_raw();
    assert!(pixels(&place) == pixels(&whole));
}
