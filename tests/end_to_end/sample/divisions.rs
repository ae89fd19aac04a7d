//! Samples whose work is divided: the same values, within what is estimated.

use super::*;

/// Settings that divide the work of a step, and give memory back sooner.
const DIVISIONS: [&[&str]; 7] = [
    &["samples=1"],
    &["samples=2", "guidance=together"],
    &["feed-forward=3"],
    &["attention=16"],
    &["ahead=0"],
    &["release=each-step"],
    &["samples=2", "feed-forward=2", "attention=33", "ahead=0", "release=at-end"],
];

/// A batch of three with guidance, by settings.
fn divided<'a>(network: &'a [String; 2], settings: &[&'a str]) -> Vec<&'a str> {
    let [transformer, conditioning] = network;
    let mut arguments = vec!["sample", "--device", "cpu", "--transformer", transformer, "--seed", "5", "--batch", "3"];
    arguments.extend(["--conditioning", conditioning, "--negative", conditioning, "--cfg", "2", "--steps", "2"]);
    settings.iter().for_each(|setting| arguments.extend(["--set", setting]));
    arguments
}

/// A transformer of each family and its conditioning.
fn networks() -> [[String; 2]; 2] {
    [("sample-flux-original", "flux1-tiny"), ("sample-ti2v-original", "wan-tiny")]
        .map(|(folder, file)| [file, "conditioning"].map(|name| fixture(&format!("{folder}/{name}.safetensors"))))
}

#[test]
fn divided_work_gives_the_same_and_holds_what_is_estimated() {
    let place = Place::new();
    for (network, size) in networks().iter().zip([&["--size", "392x384"][..], &["--size", "256x256", "--frames", "9"]])
    {
        let sample = |settings: &[&str]| {
            let arguments = [&divided(network, settings)[..], size, &["--json", "-o", "out.safetensors"]].concat();
            let record = place.run(&arguments).json();
            let bytes = |value: &Value| value["peak_bytes"].as_f64().unwrap();
            let (expected, held) = (bytes(&record["estimate"]), bytes(&record["outcome"]));
            println!("{network:?} {settings:?}: {held} bytes, {:.4} of them expected", expected / held);
            assert!((0.98..1.05).contains(&(expected / held)), "{network:?} {settings:?}: {}", expected / held);
            (tensor(&place.path("out.safetensors"), "latent").1, held)
        };
        let (plain, whole) = sample(&[]);
        let most = plain.iter().fold(1.0_f32, |most, value| most.max(value.abs()));
        let peaks = DIVISIONS.map(|settings| {
            let (found, held) = sample(settings);
            let difference = largest_difference(&plain, &found);
            assert!(difference < 1e-4 * most, "{settings:?}: {difference} of {most}");
            held
        });
        assert!(peaks[0] < 0.85 * whole, "one sample at a time");
        // The tiny WAN holds the most elsewhere.
        let is_wan = network[0].contains("ti2v");
        assert!(is_wan || sample(&["feed-forward=4"]).1 < 0.95 * whole);
    }
}

#[test]
fn a_plan_is_divided_only_as_far_as_it_has_to_be() {
    let (place, [flux, _]) = (Place::new(), networks());
    let sample = |limit: &str| {
        let more = ["--size", "384x384", "--memory-limit", limit, "--json", "-o", "x.latent"];
        place.run(&[&divided(&flux, &[])[..], &more].concat()).json()
    };
    let wide = sample("64MiB");
    assert_eq!([&wide["plan"]["samples"], &wide["plan"]["ahead"]], [&Value::Null; 2]);
    let tight = sample("10MiB");
    let (plan, outcome) = (&tight["plan"], &tight["outcome"]);
    assert_eq!((plan["samples"].as_u64(), plan["feed_forward"].as_u64()), (Some(1), Some(1)));
    let held = outcome["peak_bytes"].as_u64().unwrap() + outcome["weights_bytes"].as_u64().unwrap();
    assert!(held <= 10 << 20 && tight["attempts"].as_array().unwrap().is_empty(), "{tight}");
}
