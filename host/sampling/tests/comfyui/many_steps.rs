//! Many steps, of which some schedulers' sigmas repeat
//! (tests/fixtures/make_many_step_fixtures.py).

use tilewright_sampling::{Error, check_finite};

use super::*;

#[test]
fn a_thousand_steps_lead_where_comfyuis_and_diffusers_do() {
    let (index, tensors) = (json("many-steps.json"), tensors("many-steps.safetensors"));
    let noise = &crate::tensors("samples.safetensors")["noise"];
    let zeros = vec![0.0; noise.len()];
    let model = model("flow");
    let network = |whole_timesteps| Network {
        model: &model,
        cfg: 1.0,
        needs_negative: false,
        calls: [0, 0],
        mask: None,
        whole_timesteps,
    };
    let (random, not_finite) = (names(&index["random"]), index["not_finite"].as_array().unwrap());
    let mut failed = Vec::new();
    for steps in index["steps"].as_array().unwrap().iter().map(|steps| steps.as_u64().unwrap() as u32) {
        for scheduler in names(&index["schedulers"]) {
            let expected = &tensors[&format!("{scheduler}.{steps}")];
            let of: Scheduler = scheduler.parse().unwrap();
            for (place, name) in names(&index["samplers"]).into_iter().enumerate() {
                let sampler: Sampler = name.parse().unwrap();
                let along: Vec<f64> = sigmas(sampler, of, &model, steps);
                let is_finite = check_finite(sampler, &model, &along);
                let theirs = !not_finite.iter().any(|case| {
                    (case[0].as_str(), case[1].as_str(), case[2].as_u64())
                        == (Some(name.as_str()), Some(scheduler.as_str()), Some(steps.into()))
                });
                if is_finite.is_ok() != theirs {
                    failed
                        .push(format!("{name} {scheduler} {steps}: {is_finite:?}, and ComfyUI's is finite: {theirs}"));
                }
                if !theirs || random.contains(&name) {
                    continue;
                }
                let expected = &expected[place * 36..(place + 1) * 36];
                let wide = sample::<f64>(sampler, &model, &along, &mut network(false), [noise, &zeros]);
                let narrow: Vec<f32> = sigmas(sampler, of, &model, steps);
                let narrow = sample::<f32>(sampler, &model, &narrow, &mut network(false), [noise, &zeros]);
                let apart = [distance(&wide, expected), distance(&narrow, expected)];
                println!("{name} {scheduler} {steps}: {:.1e} in f64, {:.1e} in f32", apart[0], apart[1]);
                if !is_within(apart[0], 1e-5) || !is_within(apart[1], 2e-3) {
                    failed.push(format!("{name} {scheduler} {steps}: {apart:?}"));
                }
            }
        }
        for name in names(&index["flows"]) {
            let scheduler = FlowScheduler::of_class(&name).unwrap();
            let sampler = scheduler.sampler().parse::<Sampler>().unwrap().native();
            let along = scheduler.sigmas(Shift::Flow(3.0), 0, steps, 1.0, Times::Scheduler).unwrap();
            assert_eq!(check_finite(sampler, &model, &along), Ok(()), "{name} {steps}");
            let along: Vec<f32> = along.into_iter().map(|sigma| sigma as f32).collect();
            let [new, _] = model.noise_factors(along[0], true);
            let whole: Vec<f64> = noise.iter().map(|value| value / f64::from(new)).collect();
            let found = sample(sampler, &model, &along, &mut network(true), [&whole, &zeros]);
            let apart = distance(&found, &tensors[&format!("{name}.{steps}")]);
            println!("{name} {steps}: {apart:.1e}");
            if !is_within(apart, 2e-3) {
                failed.push(format!("{name} {steps}: {apart}"));
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn what_comfyuis_own_code_makes_no_numbers_of_is_refused_and_nothing_else() {
    /// Samplers that the list leaves out: they came after its reference, or are slow there.
    const OTHERS: [&str; 3] = ["exp_heun_2_x0", "exp_heun_2_x0_sde", "dpmpp_sde"];
    let narrow = names(&json("many-steps.json")["in_f32"]);
    let (mut checked, mut failed) = (0, Vec::new());
    for kind in ["flow-1", "flow-3", "flow-8", "flux-1.15"] {
        let model = model(kind);
        for scheduler in Scheduler::names() {
            let of: Scheduler = scheduler.parse().unwrap();
            for sampler in Sampler::all() {
                let name = sampler.to_string();
                let plain = name.strip_suffix("_gpu").unwrap_or(&name);
                for steps in [20, 100, 1000] {
                    let along: Vec<f64> = sigmas(sampler, of, &model, steps);
                    let repeats = along.windows(2).any(|pair| pair[0] as f32 == pair[1] as f32);
                    let theirs = narrow.contains(&format!("{kind} {scheduler} {plain} {steps}"));
                    // SA-Solver's equations are solved in f64 here.
                    let is_better = name.starts_with("sa_solver") && theirs;
                    let is_right = match check_finite(sampler, &model, &along) {
                        Ok(()) => !theirs || is_better,
                        Err(Error::NotFinite { repeated: Some(_), .. }) => repeats,
                        Err(_) => theirs || OTHERS.contains(&plain),
                    };
                    if !is_right {
                        failed.push(format!("{kind} {scheduler} {sampler} {steps}: {theirs}"));
                    }
                    checked += 1;
                }
            }
        }
    }
    assert!(checked > 4000 && narrow.len() > 30);
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
