mod scripted;
use scripted::*;
use tilewright_engine::Job;
use tilewright_plan::*;
#[test]
fn zz() {
    let _alone = alone();
    let vae = flux();
    for latents in [latent([1, 16, 24, 24]), latent([2, 16, 9, 30]), latent([1, 16, 5, 6])] {
        let job = Job::new(machine(), &vae, &latents, 1 << 32, Objective::Leanest).unwrap();
        for dtype in [Dtype::F32, Dtype::Bf16] { for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] { for space in [Space::Whole, square(64, 0)] {
            let plan = plan(space, 1, Precision::Uniform(dtype), layout);
            let est = job.estimate(&plan).unwrap().peak_bytes;
            let m = job.run(&mut Scripted::new([plan]), &mut Quiet).map_err(|u| u.error).unwrap().record.outcome.unwrap().peak_bytes;
            println!("{:?} {dtype} {layout} {space}: {est} {m} {:.3} {}", latents.size(), est as f64 / m as f64, est as i64 - m as i64);
        } } }
    }
}
