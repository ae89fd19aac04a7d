//! Captures whose process is killed.

use std::{
    env, fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread::sleep,
    time::Duration,
};

use tilewright_capture::{Capture, Captured, Dtype, End, Settings, TensorView};
use tilewright_plan::Stage;

/// The variable that names the folder of the process to kill.
const PLACE: &str = "TILEWRIGHT_TEST_CAPTURES";

fn write(folder: &Path) -> Result<(), tilewright_capture::Error> {
    let layers = Some("**".parse()?);
    let capture = Capture::begin(Settings { layers, ..Settings::new(folder) })?;
    let bytes = vec![1; 64 << 10];
    let tensor = TensorView { dtype: Dtype::U8, shape: &[64 << 10], bytes: &bytes };
    let mut stage = capture.stage(Stage::Denoise, 1)?;
    stage.inputs(&[("noise", tensor)])?;
    for call in 0..8 {
        stage.layer("blocks.0", call, End::Out, tensor)?;
    }
    stage.outputs(&[("latent", tensor)])?;
    stage.finish(Duration::ZERO)?;
    capture.finish().map(drop)
}

#[test]
#[ignore = "the process that the other test kills"]
fn captures_until_it_is_killed() {
    let Some(place) = env::var_os(PLACE).map(PathBuf::from) else { return };
    println!("\nbegins");
    for number in 0.. {
        write(&place.join(number.to_string())).unwrap();
    }
}

#[test]
fn twenty_kills_leave_no_partial_folder_that_passes_for_a_whole_one() {
    for kill in 0..20 {
        let place = tempfile::tempdir().unwrap();
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--ignored", "--exact", "captures_until_it_is_killed", "--nocapture"])
            .env(PLACE, place.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line == "begins"));
        sleep(Duration::from_micros(1000 + 2711 * kill));
        child.kill().unwrap();
        child.wait().unwrap();

        let visible = || -> Vec<PathBuf> {
            let entries = fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap());
            entries
                .filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'))
                .map(|entry| entry.path())
                .collect()
        };
        for folder in visible() {
            let captured = Captured::open(&folder).unwrap();
            let stage = &captured.stages()[0];
            assert_eq!((captured.layers(stage).count(), captured.outputs(stage).unwrap().len()), (8, 1));
        }
        // The next one removes what is left.
        write(&place.path().join("next")).unwrap();
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), visible().len());
    }
}
