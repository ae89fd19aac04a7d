//! Samplers and schedulers against ComfyUI's own, on a closed-form network
//! (tests/fixtures/samplers; make_sampler_fixtures.py defines it).

#[path = "comfyui/many_steps.rs"]
mod many_steps;

use std::{collections::HashMap, convert::Infallible, fmt::Debug, fs};

use safetensors::SafeTensors;
use serde_json::Value;
use tch::Device;
use tilewright_fixtures::fixture;
use tilewright_sampling::{
    Course, Denoised, Denoiser, FlowScheduler, Latents, ModelSampling, Noise, NoiseKind, Prediction, Real, Sampler,
    SamplerNoise, Schedule, Scheduler, Shift, Span, Times,
};
use tilewright_torch::NoiseStream;

/// Latents on their own.
#[derive(Clone, Debug, PartialEq)]
struct Values<F>(Vec<F>);

impl<F: Real> Latents for Values<F> {
    type Scalar = F;
    type Error = Infallible;

    fn combine(terms: &[(F, &Self)]) -> Result<Self, Infallible> {
        let mut sum: Vec<F> = terms[0].1.0.iter().map(|value| *value * terms[0].0).collect();
        for (factor, term) in &terms[1..] {
            sum.iter_mut().zip(&term.0).for_each(|(sum, value)| *sum = *sum + *value * *factor);
        }
        Ok(Self(sum))
    }

    fn share(&self) -> Self {
        self.clone()
    }

    fn deviation(low: &Self, high: &Self, previous: &Self, absolute: F, relative: F) -> Result<F, Infallible> {
        let squares = low.0.iter().zip(&high.0).zip(&previous.0).map(|((low, high), previous)| {
            let allowed = absolute.max(relative * low.abs().max(previous.abs()));
            ((*low - *high) / allowed).powi(2)
        });
        let sum = squares.fold(F::zero(), |sum, square| sum + square);
        Ok((sum / F::of(low.0.len() as f64)).sqrt())
    }
}

const SHAPE: [i64; 4] = [2, 2, 3, 3];
const SAMPLE: usize = 18;

/// The closed-form network under guidance.
struct Network<'a> {
    model: &'a ModelSampling,
    cfg: f64,
    needs_negative: bool,
    /// Calls for the positive and the negative conditioning.
    calls: [usize; 2],
    mask: Option<Mask<'a>>,
    /// The timestep is cut off to a whole number.
    whole_timesteps: bool,
}

/// The kept latents of a mask.
struct Mask<'a> {
    mask: &'a [f64],
    kept: &'a [f64],
    noise: &'a [f64],
}

impl Network<'_> {
    fn output<F: Real>(&self, latents: &Values<F>, sigma: F, condition: f64) -> Vec<F> {
        let timestep = self.model.timestep(sigma.wide());
        let timestep = F::of(if self.whole_timesteps { timestep.floor() } else { timestep });
        let (one, two, square) = (F::one(), F::of(2.0), F::of(0.25));
        let factor = self.model.input_factor(sigma);
        let value = |(place, latent): (usize, &F)| {
            let k = (place % SAMPLE) as f64;
            let mu = F::of(0.8 * (1.3 * k + 0.4).sin() + 0.15 * condition);
            let psi = F::of(0.1 * k + 0.5 * condition);
            let x = *latent * factor;
            let extra = F::of(0.03) * (two * x + psi).sin() + F::of(0.02) * (F::of(0.002) * timestep).cos();
            let root = (sigma * sigma + one).sqrt();
            extra
                + match self.model.prediction() {
                    Prediction::Epsilon => sigma * (x * root - mu) / (square + sigma * sigma),
                    Prediction::Velocity => sigma * ((one - square) * x - root * mu) / (square + sigma * sigma),
                    Prediction::Flow => {
                        let a = one - sigma;
                        (sigma - a * square) * (x - a * mu) / (a * a * square + sigma * sigma) - mu
                    }
                }
        };
        latents.0.iter().enumerate().map(value).collect()
    }

    fn denoised<F: Real>(&self, latents: &Values<F>, sigma: F, condition: f64) -> Values<F> {
        let output = Values(self.output(latents, sigma, condition));
        let [kept, new] = self.model.denoised_factors(sigma);
        Values::combine(&[(kept, latents), (new, &output)]).unwrap()
    }
}

impl<F: Real> Denoiser<Values<F>> for Network<'_> {
    fn denoise(&mut self, latents: &Values<F>, sigma: F) -> Result<Denoised<Values<F>>, Infallible> {
        let mut latents = latents.clone();
        if let Some(Mask { mask, kept, noise }) = &self.mask {
            let [new, old] = self.model.noise_factors(sigma, false);
            for (place, value) in latents.0.iter_mut().enumerate() {
                let (part, kept, noise) = (F::of(mask[place % 9]), F::of(kept[place]), F::of(noise[place]));
                *value = *value * part + (new * noise + old * kept) * (F::one() - part);
            }
        }
        self.calls[0] += 1;
        let positive = self.denoised(&latents, sigma, 1.0);
        let (mut guided, negative) = if self.cfg == 1.0 && !self.needs_negative {
            (positive.clone(), positive)
        } else {
            self.calls[1] += 1;
            let negative = self.denoised(&latents, sigma, -1.0);
            let cfg = F::of(self.cfg);
            let led = negative
                .0
                .iter()
                .zip(&positive.0)
                .map(|(negative, positive)| *negative + (*positive - *negative) * cfg);
            (Values(led.collect()), negative)
        };
        if let Some(Mask { mask, kept, .. }) = &self.mask {
            for (place, value) in guided.0.iter_mut().enumerate() {
                let part = F::of(mask[place % 9]);
                *value = *value * part + F::of(kept[place]) * (F::one() - part);
            }
        }
        Ok(Denoised { guided, negative })
    }
}

/// The noise of ComfyUI's samplers, in f32.
struct Drawn(SamplerNoise);

impl Drawn {
    fn new<F: Real>(sampler: Sampler, sigmas: &[F]) -> Self {
        let sigmas: Vec<f32> = sigmas.iter().map(|sigma| sigma.wide() as f32).collect();
        Self(SamplerNoise::new(sampler, &[42], &sigmas, 0, &SHAPE, Device::Cpu).unwrap())
    }
}

impl<F: Real> Noise<Values<F>> for Drawn {
    fn draw(&mut self, from: F, to: F) -> Result<Values<F>, Infallible> {
        let noise = self.0.next(from.wide() as f32, to.wide() as f32).unwrap();
        let values = Vec::<f32>::try_from(noise.reshape([-1])).unwrap();
        Ok(Values(values.into_iter().map(|value| F::of(f64::from(value))).collect()))
    }
}

fn json(name: &str) -> Value {
    serde_json::from_slice(&fs::read(fixture("samplers").join(name)).unwrap()).unwrap()
}

fn tensors(name: &str) -> HashMap<String, Vec<f64>> {
    let bytes = fs::read(fixture("samplers").join(name)).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let read = |(name, view): (String, safetensors::tensor::TensorView<'_>)| {
        let values = match view.dtype() {
            safetensors::Dtype::F32 => view
                .data()
                .chunks_exact(4)
                .map(|bytes| f64::from(f32::from_le_bytes(bytes.try_into().unwrap())))
                .collect(),
            _ => view.data().chunks_exact(8).map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap())).collect(),
        };
        (name, values)
    };
    file.tensors().into_iter().map(read).collect()
}

fn names(value: &Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect()
}

fn model(kind: &str) -> ModelSampling {
    match kind {
        "eps" => ModelSampling::discrete(Prediction::Epsilon),
        "v" => ModelSampling::discrete(Prediction::Velocity),
        "flow" | "flow-3" => ModelSampling::shifted(3.0),
        "flow-8" => ModelSampling::shifted(8.0),
        "flow-1" => ModelSampling::shifted(1.0),
        "flux-1.15" => ModelSampling::exponential(1.15),
        other => panic!("{other}"),
    }
}

/// The sigmas of KSampler.
fn sigmas<F: Real>(sampler: Sampler, scheduler: Scheduler, model: &ModelSampling, steps: u32) -> Vec<F> {
    scheduler.steps(sampler, model, steps).into_iter().map(|sigma| F::of(f64::from(sigma))).collect()
}

/// A sample as KSampler makes it, and the calls of the network.
fn sample<F: Real>(
    sampler: Sampler,
    model: &ModelSampling,
    sigmas: &[F],
    network: &mut Network<'_>,
    [noise, latent]: [&[f64]; 2],
) -> Vec<f64> {
    let [new, kept] = model.noise_factors(sigmas[0], true);
    let [noise, latent] = [noise, latent].map(|values| Values(values.iter().map(|value| F::of(*value)).collect()));
    let latents = Values::combine(&[(new, &noise), (kept, &latent)]).unwrap();
    let course = Course::new(sampler, model, sigmas);
    let mut drawn = Drawn::new(sampler, sigmas);
    let mut state = course.start(latents).unwrap();
    while !course.is_done(&state) {
        state = course.step(&state, network, &mut drawn).unwrap();
        assert!(state.history.len() <= sampler.remembered() as usize, "{sampler}");
    }
    course.finish(&state).unwrap().0.into_iter().map(Real::wide).collect()
}

/// The largest difference, as a share of what is compared with, or of 1.
fn distance(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(1.0_f64, |largest, value| largest.max(value.abs()));
    let apart = found.iter().zip(expected).map(|(found, expected)| (found - expected).abs());
    apart.fold(0.0, |most, apart| if apart > most || apart.is_nan() { apart } else { most }) / largest
}

/// True if a distance is a number, and no larger than allowed.
fn is_within(apart: f64, most: f64) -> bool {
    apart <= most
}

#[test]
fn every_sampler_goes_comfyuis_way_along_every_schedulers_sigmas() {
    let (cases, tensors) = (json("cases.json"), tensors("samples.safetensors"));
    let (schedulers, kinds) = (names(&cases["schedulers"]), names(&cases["kinds"]));
    let noise = &tensors["noise"];
    let zeros = vec![0.0; noise.len()];
    let mut failed = Vec::new();
    for name in names(&cases["samplers"]) {
        let sampler: Sampler = name.parse().unwrap();
        for (row, scheduler) in schedulers.iter().enumerate() {
            let scheduler: Scheduler = scheduler.parse().unwrap();
            for (column, kind) in kinds.iter().enumerate() {
                let model = model(kind);
                let place = (row * kinds.len() + column) * 36;
                let network = || Network {
                    model: &model,
                    cfg: 2.0,
                    needs_negative: sampler.needs_negative(),
                    calls: [0, 0],
                    mask: None,
                    whole_timesteps: false,
                };
                let mut wide = network();
                let found =
                    sample::<f64>(sampler, &model, &sigmas(sampler, scheduler, &model, 7), &mut wide, [noise, &zeros]);
                let apart = distance(&found, &tensors[&format!("{name}.f64")][place..place + 36]);
                let calls = cases["calls"][&name][row][column].as_u64().unwrap() as usize;
                if !is_within(apart, 1e-5) || wide.calls[0] != calls {
                    failed.push(format!(
                        "{name} {scheduler} {kind} f64: {apart:.1e}, {:?} calls for {calls}",
                        wide.calls
                    ));
                }
                let mut narrow = network();
                let found = sample::<f32>(
                    sampler,
                    &model,
                    &sigmas(sampler, scheduler, &model, 7),
                    &mut narrow,
                    [noise, &zeros],
                );
                let apart = distance(&found, &tensors[&format!("{name}.f32")][place..place + 36]);
                // Some paths amplify rounding: ComfyUI's own f32 is further from its f64 there.
                let own = cases["f32_distance"][&name][row][column].as_f64().unwrap();
                // Brownian noise rounds its times, so that the last bit of a sigma moves it.
                let least: f64 = if sampler.noise() == NoiseKind::Brownian { 2e-5 } else { 1e-5 };
                if !is_within(apart, least.max(3.0 * own)) || narrow.calls[0] != calls {
                    failed.push(format!(
                        "{name} {scheduler} {kind} f32: {apart:.1e}, {:?} calls for {calls}",
                        narrow.calls
                    ));
                }
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn schedulers_give_comfyuis_sigmas() {
    let (cases, tables) = (json("sigmas.json"), tensors("sigmas.safetensors"));
    let mut failed = Vec::new();
    for kind in cases["samplings"].as_object().unwrap().keys() {
        let model = model(kind);
        let table = &tables[&format!("{kind}.sigmas")];
        let apart = model.sigmas().iter().zip(table).map(|(found, expected)| (f64::from(*found) - expected).abs());
        let most = apart.fold(0.0, f64::max);
        assert!(model.sigmas().len() == table.len() && most <= 1e-6, "{kind}: {most}");
    }
    let text = |case: &Value, name: &str| case[name].as_str().unwrap().to_owned();
    let expected = |case: &Value| -> Vec<f64> {
        case["sigmas"].as_array().unwrap().iter().map(|sigma| sigma.as_f64().unwrap_or(f64::NAN)).collect()
    };
    let mut compare = |what: String, found: Vec<f32>, expected: Vec<f64>| {
        let near = |(found, expected): (&f32, &f64)| {
            let found = f64::from(*found);
            found.is_nan() && expected.is_nan() || (found - expected).abs() <= 2e-6 * expected.abs().max(0.1)
        };
        if found.len() != expected.len() || !found.iter().zip(&expected).all(near) {
            failed.push(format!("{what}: {found:?} for {expected:?}"));
        }
    };
    for case in cases["ksampler"].as_array().unwrap() {
        let (kind, scheduler, sampler) = (text(case, "sampling"), text(case, "scheduler"), text(case, "sampler"));
        let (steps, strength) = (case["steps"].as_u64().unwrap() as u32, case["denoise"].as_f64().unwrap_or(1.0));
        let schedule =
            Schedule { sampler: sampler.parse().unwrap(), scheduler: scheduler.parse().unwrap(), model: model(&kind) };
        let Ok(found) = schedule.sigmas(steps, strength) else {
            // A strength of 0 and a scheduler without sigmas are refused.
            assert!(strength == 0.0 || expected(case)[0].is_nan(), "{case}");
            continue;
        };
        let found = found.into_iter().map(|sigma| sigma as f32).collect();
        compare(format!("{sampler} {kind} {scheduler} {steps} {strength}"), found, expected(case));
    }
    for case in cases["percent_to_sigma"].as_array().unwrap() {
        let (kind, percent) = (text(case, "sampling"), case["percent"].as_f64().unwrap());
        compare(
            format!("{kind} {percent}"),
            vec![model(&kind).sigma_at(percent) as f32],
            vec![case["sigma"].as_f64().unwrap()],
        );
    }
    for case in cases["timesteps"].as_array().unwrap() {
        let (kind, sigma) = (text(case, "sampling"), case["sigma"].as_f64().unwrap());
        compare(
            format!("{kind} {sigma}"),
            vec![model(&kind).timestep(sigma) as f32],
            vec![case["timestep"].as_f64().unwrap()],
        );
    }
    for case in cases["schedules"].as_array().unwrap() {
        let (kind, scheduler, steps) =
            (text(case, "sampling"), text(case, "scheduler"), case["steps"].as_u64().unwrap());
        let found = scheduler.parse::<Scheduler>().unwrap().sigmas(&model(&kind), steps as u32);
        compare(format!("{kind} {scheduler} {steps}"), found, expected(case));
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// A use of KSampler: its sigmas, noise, latents, and whether there is a mask.
type Use<'a> = (Vec<f64>, &'a [f64], &'a [f64], bool);

/// The cases of extras.json in one type, with what they differ by beyond a tolerance.
fn extras<F: Real>(kind_of_number: &str) -> Vec<String> {
    let (extras, tensors) = (json("extras.json"), tensors("extras.safetensors"));
    let (noise, latent, mask) = (&tensors["noise"][..], &tensors["latent"][..], &tensors["mask"][..]);
    let zeros = vec![0.0; noise.len()];
    let mut failed = Vec::new();
    for case in extras["cases"].as_array().unwrap() {
        let name = case["case"].as_str().unwrap();
        for (kind, _) in case["calls"].as_object().unwrap() {
            let model = model(kind);
            for (row, sampler) in names(&case["samplers"]).iter().enumerate() {
                let sampler: Sampler = sampler.parse().unwrap();
                let steps = |count: u32, strength: f64, span: Span| {
                    let all = Schedule { sampler, scheduler: Scheduler::Simple, model: model.clone() };
                    span.of(all.sigmas(count, strength).unwrap()).unwrap()
                };
                let whole = Span::default();
                let part = |start, end, leftover| Span { start: Some(start), end: Some(end), leftover };
                let place = row * 36..(row + 1) * 36;
                let before = tensors.get(&format!("first.{kind}.{kind_of_number}")).map(|all| all.get(place.clone()));
                let (sigmas, noise, latent, has_mask): Use = match name {
                    "denoise" => (steps(7, 0.6, whole), noise, latent, false),
                    "mask" => (steps(7, 1.0, whole), noise, latent, true),
                    "first" => (steps(8, 1.0, part(0, 4, true)), noise, &zeros, false),
                    "second" => (steps(8, 1.0, part(4, 8, false)), &zeros, before.unwrap().unwrap(), false),
                    "middle" => (steps(8, 1.0, part(2, 6, false)), noise, latent, false),
                    "by-hand" => {
                        let by_hand = &extras["by_hand"][kind];
                        (
                            by_hand.as_array().unwrap().iter().map(|sigma| sigma.as_f64().unwrap()).collect(),
                            noise,
                            latent,
                            false,
                        )
                    }
                    "cfg1" => (steps(7, 1.0, whole), noise, &zeros, false),
                    other => (
                        steps(other.strip_prefix("steps-").unwrap().parse().unwrap(), 1.0, whole),
                        noise,
                        &zeros,
                        false,
                    ),
                };
                // `ddim` keeps its part with noise of the next seed.
                let own = sampler.has_other_mask_noise().then(|| NoiseStream::new(43).unwrap().draw(&SHAPE).unwrap());
                let own = own.map(|noise| Vec::<f32>::try_from(noise.reshape([-1])).unwrap());
                let own: Option<Vec<f64>> = own.map(|noise| noise.into_iter().map(f64::from).collect());
                let mask = Mask { mask, kept: latent, noise: own.as_deref().unwrap_or(noise) };
                let mut network = Network {
                    model: &model,
                    cfg: if name == "cfg1" { 1.0 } else { 2.0 },
                    needs_negative: sampler.needs_negative(),
                    calls: [0, 0],
                    mask: has_mask.then_some(mask),
                    whole_timesteps: false,
                };
                let sigmas: Vec<F> = sigmas.into_iter().map(F::of).collect();
                let found = sample(sampler, &model, &sigmas, &mut network, [noise, latent]);
                let apart = distance(&found, &tensors[&format!("{name}.{kind}.{kind_of_number}")][place]);
                let calls = [0, 1].map(|of| case["calls"][kind][row][of].as_u64().unwrap() as usize);
                if !is_within(apart, 1e-5) || network.calls != calls {
                    failed.push(format!(
                        "{name} {sampler} {kind} {kind_of_number}: {apart:.1e}, {:?} calls for {calls:?}",
                        network.calls
                    ));
                }
            }
        }
    }
    failed
}

#[test]
fn parts_masks_and_strengths_are_those_of_ksampler() {
    let failed = [extras::<f64>("f64"), extras::<f32>("f32")].concat();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn diffusers_schedulers_for_flows_have_the_same_sigmas_and_results() {
    let (cases, tensors) = (json("diffusers.json"), tensors("diffusers.safetensors"));
    let noise = &crate::tensors("samples.safetensors")["noise"];
    let mut compared = 0;
    for case in cases["cases"].as_array().unwrap().iter().filter(|case| case["kind"] == "flow") {
        let (name, config) = (case["case"].as_str().unwrap(), &case["config"]);
        let scheduler = FlowScheduler::of_class(case["class"].as_str().unwrap()).unwrap();
        let sampler: Sampler = scheduler.sampler().parse().unwrap();
        assert_eq!(FlowScheduler::of(sampler), scheduler);
        let (shift, times) = match case["set_timesteps"]["mu"].as_f64() {
            Some(mu) => (Shift::Exponential(mu), Times::Pipeline),
            None => {
                (Shift::Flow(config["shift"].as_f64().or(config["flow_shift"].as_f64()).unwrap()), Times::Scheduler)
            }
        };
        let sigmas = scheduler.sigmas(shift, 0, 7, 1.0, times).unwrap();
        for (found, expected) in sigmas.iter().zip(case["sigmas"].as_array().unwrap()) {
            assert!((found - expected.as_f64().unwrap()).abs() < 2e-7, "{name}: {sigmas:?}");
        }
        let model = model("flow");
        let mut network = Network {
            model: &model,
            cfg: 2.0,
            needs_negative: false,
            calls: [0, 0],
            mask: None,
            whole_timesteps: scheduler.has_whole_timesteps(),
        };
        let zeros = vec![0.0; noise.len()];
        let sigmas: Vec<f32> = sigmas.into_iter().map(|sigma| sigma as f32).collect();
        // diffusers begins with the noise as it is, also where the first sigma is a little below 1.
        let [new, _] = model.noise_factors(sigmas[0], true);
        let whole: Vec<f64> = noise.iter().map(|value| value / f64::from(new)).collect();
        let found = sample(sampler.native(), &model, &sigmas, &mut network, [&whole, &zeros]);
        let apart = distance(&found, &tensors[&format!("{name}.f32")]);
        assert!(apart <= 1e-5, "{name}: {apart:.1e}");
        compared += 1;
    }
    assert_eq!(compared, 4);
}
