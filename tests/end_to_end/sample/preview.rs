//! Previews of samples.

use super::*;
use crate::program::smaller;

/// Colours as rows of channels, of a picture scaled to `side` × `side` pixels.
fn colours(picture: &Path, side: u32) -> Vec<f64> {
    let picture = image::open(picture).unwrap().to_rgb8();
    let small = image::imageops::resize(&picture, side, side, image::imageops::FilterType::Triangle);
    small.pixels().flat_map(|pixel| pixel.0).map(f64::from).collect()
}

fn correlation(one: &[f64], other: &[f64]) -> f64 {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let (means, pairs) = ([mean(one), mean(other)], one.iter().zip(other));
    let [mut both, mut first, mut second] = [0.0; 3];
    for (a, b) in pairs {
        let (a, b) = (a - means[0], b - means[1]);
        both += a * b;
        first += a * a;
        second += b * b;
    }
    both / (first * second).sqrt()
}

#[test]
fn a_preview_has_the_colours_that_a_decode_gives() {
    let (place, case) = (Place::new(), case("flux-original"));
    let transformer =
        case.arguments[case.arguments.iter().position(|name| name == "--transformer").unwrap() + 1].clone();
    let conditioning =
        case.arguments[case.arguments.iter().position(|name| name == "--conditioning").unwrap() + 1].clone();
    let [latent, _, vae] = smaller(&place);
    // A share of the way that is too small to change much.
    let more = ["--latent", &latent, "--denoise", "0.01", "--steps", "1", "--preview", "now.png"];
    let arguments = ["sample", "--device", "cpu", "--transformer", &transformer, "--conditioning", &conditioning];
    let arguments = [&arguments[..], &more, &["-o", "out.latent"]].concat();
    place.run(&arguments).failed(2, "--vae");
    place.run(&[&arguments[..], &["--vae", &vae]].concat()).succeeded();
    place.run(&["decode", "out.latent", "--vae", &vae, "-o", "decoded.png"]).succeeded();
    let [preview, decoded] = ["now.png", "decoded.png"].map(|name| colours(&place.path(name), 32));
    let found = correlation(&preview, &decoded);
    assert!(found > 0.9, "{found}");
    // A VAE of another model has other latents.
    let other = fixture("wan21-original/Wan2.1_VAE.safetensors");
    place.run(&[&arguments[..], &["--vae", &other]].concat()).failed(2, "a VAE of clips with 16 channels");
}
