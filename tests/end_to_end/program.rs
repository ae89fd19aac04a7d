//! Starts the program in a folder of its own, and reads what it leaves there.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use safetensors::SafeTensors;
use serde_json::Value;
use tempfile::TempDir;

/// oneDNN's variable for the instructions that it may use, on which the memory of its kernels
/// depends.
const KERNELS: &str = "ONEDNN_MAX_CPU_ISA";

/// The checkout.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// A file among the fixtures.
pub fn fixture(name: &str) -> String {
    tilewright_fixtures::fixture(name).display().to_string()
}

/// The bundled latent and model.
pub fn bundled() -> [String; 3] {
    let at = |name: &str| root().join("examples").join(name).display().to_string();
    [at("latents/astronaut.latent"), "--vae".into(), at("models/flux-tiny/ae.safetensors")]
}

/// The middle of the bundled latent, 192×192 pixels, and the bundled model: for tests that decode
/// more than once.
pub fn smaller(place: &Place) -> [String; 3] {
    middle(place, 24)
}

/// The middle of the bundled latent, of this many values on each side, 8 pixels for each, and the
/// bundled model.
pub fn middle(place: &Place, count: usize) -> [String; 3] {
    let [latent, option, vae] = bundled();
    [cut(place, &latent, count, count), option, vae]
}

/// Writes the middle of a latent of ComfyUI's, of this many values in height and width.
pub fn cut(place: &Place, latent: &str, height: usize, width: usize) -> String {
    let bytes = fs::read(latent).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let whole = file.tensor("latent_tensor").unwrap();
    let [planes @ .., rows, columns] = whole.shape() else { panic!("{:?}", whole.shape()) };
    let (top, left) = ((rows - height) / 2, (columns - width) / 2);
    let rows =
        (0..planes.iter().product()).flat_map(|plane: usize| (top..top + height).map(move |row| plane * rows + row));
    let starts = rows.map(|row| 4 * (row * columns + left));
    let middle: Vec<u8> = starts.flat_map(|start| whole.data()[start..start + 4 * width].iter().copied()).collect();
    place.write("middle.safetensors", one_tensor("latents", "F32", &[planes, &[height, width]].concat(), &middle))
}

/// The program's cache in all tests: what it measures of this machine, it measures once.
fn cache() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("end-to-end-cache")
}

/// An empty folder that the program works in.
pub struct Place {
    folder: TempDir,
    home: TempDir,
}

impl Place {
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), home: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> String {
        fs::write(self.path(name), contents).unwrap();
        name.to_owned()
    }

    /// Everything that stands in the folder now.
    pub fn files(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// The path of the program's history.
    pub fn history(&self) -> PathBuf {
        self.home.path().join("history.sqlite")
    }

    /// Writes the user's configuration.
    pub fn configure(&self, text: &str) {
        let folder = self.home.path().join(".config/tilewright");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("config.toml"), text).unwrap();
    }

    /// Runs the program on the CPU with its home and history in an empty place.
    pub fn run<S: AsRef<str>>(&self, arguments: &[S]) -> Run {
        Run(self.command(arguments).output().unwrap())
    }

    /// The program about to be run, for tests that change its environment.
    pub fn command<S: AsRef<str>>(&self, arguments: &[S]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tilewright"));
        command
            .current_dir(self.folder.path())
            .env_clear()
            .env("HOME", self.home.path())
            .env("XDG_CACHE_HOME", cache())
            .env("TILEWRIGHT_HISTORY", self.history())
            // One output is made in several processes, and plans follow from what was measured.
            .env("TILEWRIGHT_PINNED_PROBE", "1");
        // Tests run side by side: threads that wait for each other on busy cores are many times
        // slower than one alone.
        command.env("OMP_NUM_THREADS", "1");
        // The kernels that `cargo xtask test` has chosen.
        command.envs(env::var_os(KERNELS).map(|chosen| (KERNELS, chosen)));
        command.args(arguments.iter().map(AsRef::as_ref));
        command
    }

    pub fn decode<S: AsRef<str>>(&self, inputs: &[S], options: &[&str]) -> Run {
        let mut arguments = vec!["decode".to_owned()];
        arguments.extend(inputs.iter().map(|input| input.as_ref().to_owned()));
        arguments.extend(["--device", "cpu"].map(str::to_owned));
        arguments.extend(options.iter().map(|option| (*option).to_owned()));
        self.run(&arguments)
    }

    /// The f32 tensor `sample` of a raw output, with its shape.
    pub fn sample(&self, name: &str) -> (Vec<usize>, Vec<f32>) {
        sample(&self.path(name))
    }
}

/// A run that has ended.
pub struct Run(pub Output);

impl Run {
    pub fn stdout(&self) -> String {
        String::from_utf8(self.0.stdout.clone()).unwrap()
    }

    pub fn stderr(&self) -> String {
        String::from_utf8(self.0.stderr.clone()).unwrap()
    }

    pub fn json(&self) -> Value {
        self.succeeded();
        serde_json::from_str(&self.stdout()).unwrap_or_else(|error| panic!("{error}: {}", self.stdout()))
    }

    /// The record that was printed, without the names of the outputs, which are beside it.
    pub fn record(&self) -> Value {
        let mut record: Value =
            serde_json::from_str(&self.stdout()).unwrap_or_else(|error| panic!("{error}: {}", self.stdout()));
        let outputs = record.as_object_mut().unwrap().remove("outputs");
        assert!(outputs.is_some_and(|outputs| outputs.is_array()), "{record}");
        record
    }

    pub fn succeeded(&self) -> &Self {
        assert!(self.0.status.success(), "{:?}\n{}{}", self.0.status, self.stdout(), self.stderr());
        self
    }

    /// Ended with this status, and one line that has these words.
    pub fn failed(&self, status: i32, words: &str) {
        let stderr = self.stderr();
        assert_eq!(self.0.status.code(), Some(status), "{stderr}");
        let errors: Vec<&str> = stderr.lines().filter(|line| line.starts_with("error: ")).collect();
        assert_eq!(errors.len(), 1, "one line says what is wrong: {stderr}");
        assert!(errors[0].contains(words), "{words:?} is not in {:?}", errors[0]);
        for noise in ["panicked", "C++", "Exception", "backtrace", "at::"] {
            assert!(!stderr.contains(noise), "{stderr}");
        }
    }
}

/// The f32 tensor `sample` of a safetensors file, with its shape.
pub fn sample(path: &Path) -> (Vec<usize>, Vec<f32>) {
    let bytes = fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let tensor = file.tensor("sample").unwrap();
    let values = tensor.data().chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect();
    (tensor.shape().to_vec(), values)
}

/// Largest absolute difference.
pub fn largest_difference(one: &[f32], other: &[f32]) -> f32 {
    assert_eq!(one.len(), other.len());
    one.iter().zip(other).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max)
}

/// Peak signal-to-noise ratio of values in −1…1, in decibels.
pub fn decibels(one: &[f32], other: &[f32]) -> f64 {
    assert_eq!(one.len(), other.len());
    let squares: f64 = one.iter().zip(other).map(|(one, other)| f64::from(one - other).powi(2)).sum();
    10.0 * (4.0 / (squares / one.len() as f64)).log10()
}

/// A PNG's text chunks, by keyword.
pub fn texts(path: &Path) -> BTreeMap<String, String> {
    let decoder = png::Decoder::new(std::io::BufReader::new(fs::File::open(path).unwrap()));
    let reader = decoder.read_info().unwrap();
    let info = reader.info();
    let latin = info.uncompressed_latin1_text.iter().map(|chunk| (chunk.keyword.clone(), chunk.text.clone()));
    let wide = info.utf8_text.iter().map(|chunk| (chunk.keyword.clone(), chunk.get_text().unwrap()));
    latin.chain(wide).collect()
}

/// A safetensors file of one tensor.
pub fn one_tensor(name: &str, dtype: &str, shape: &[usize], data: &[u8]) -> Vec<u8> {
    let header = format!(r#"{{"{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[0,{}]}}}}"#, data.len());
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
}

/// A latent of these values repeated.
pub fn latent(shape: &[usize], value: f32) -> Vec<u8> {
    let count: usize = shape.iter().product();
    one_tensor("latents", "F32", shape, &value.to_le_bytes().repeat(count))
}
