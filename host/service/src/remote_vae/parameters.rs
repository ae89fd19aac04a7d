//! The parameters of a request, which are all in its query. Those that this server does not know
//! are no concern of it: clients send some for others.

use super::{Element, Scaling};
use crate::problem::{ApiResult, Problem};

/// The form of an answer to a decode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Output {
    /// A picture's file; of a client that takes tensors, its values in 0…1.
    #[default]
    Picture,
    /// A tensor in −1…1.
    Tensor,
    /// Bytes, as pictures have them.
    Bytes,
    /// A clip's file.
    Clip,
}

/// The parameters of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parameters {
    /// The extents of the tensor in the body; none of a picture's file.
    pub shape: Vec<i64>,
    /// The type of its values.
    pub element: Option<Element>,
    /// The form of the answer.
    pub output: Output,
    /// A picture's file is JPEG, and not PNG.
    pub is_jpeg: bool,
    /// Latents carry this factor.
    pub scaling_factor: Option<f64>,
    /// Latents are less by this before they are scaled.
    pub shift_factor: Option<f64>,
    /// Latents carry the model's own scaling, unless factors are given.
    pub do_scaling: bool,
    /// Pixels of the picture of packed latents.
    pub height: Option<i64>,
    /// Pixels of the picture of packed latents.
    pub width: Option<i64>,
    /// Frames per second of a clip.
    pub fps: Option<String>,
    /// The job's tag.
    pub tag: Option<String>,
}

impl Parameters {
    /// The scaling that is given.
    pub fn scaling(&self) -> Scaling {
        Scaling { factor: self.scaling_factor, shift: self.shift_factor }
    }

    /// True if latents carry the model's own scaling. The client asks for it whenever it gives no
    /// factor, and so beside a shift, too.
    pub fn has_own_scaling(&self) -> bool {
        self.do_scaling && self.scaling() == Scaling::default()
    }
}

/// The most axes of a tensor, and the longest axis.
const AXES: usize = 5;
const LONGEST: i64 = 1 << 24;

impl Parameters {
    /// The parameters of a query.
    ///
    /// # Errors
    /// A parameter has a value that it can't have.
    pub fn parse(query: &str) -> ApiResult<Self> {
        let mut found = Self { is_jpeg: true, ..Self::default() };
        let (mut output, mut is_post_processed) = (Output::Picture, false);
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let read = Reading { name: &name, value: &value };
            match &*name {
                "shape" => {
                    if found.shape.len() == AXES {
                        return Err(read.refuse(&format!("at most {AXES} of them")));
                    }
                    found.shape.push(read.count()?);
                }
                "dtype" => found.element = Some(read.element()?),
                "output_type" => {
                    output = match &*value {
                        "pil" => Output::Picture,
                        "pt" => Output::Tensor,
                        "mp4" => Output::Clip,
                        _ => return Err(read.refuse("pil, pt or mp4")),
                    }
                }
                "image_format" => {
                    found.is_jpeg = match &*value {
                        "jpg" | "jpeg" => true,
                        "png" => false,
                        _ => return Err(read.refuse("jpg or png")),
                    }
                }
                "partial_postprocess" => is_post_processed = read.flag()?,
                "do_scaling" => found.do_scaling = read.flag()?,
                "scaling_factor" => {
                    let factor = read.number()?;
                    if factor as f32 == 0.0 {
                        return Err(read.refuse("a number other than 0"));
                    }
                    found.scaling_factor = Some(factor);
                }
                "shift_factor" => found.shift_factor = Some(read.number()?),
                "height" => found.height = Some(read.count()?),
                "width" => found.width = Some(read.count()?),
                "fps" => found.fps = Some(value.into_owned()),
                "tag" => found.tag = Some(value.into_owned()),
                _ => {}
            }
        }
        // As the first servers of the protocol have it, this comes before `output_type`.
        found.output = if is_post_processed { Output::Bytes } else { output };
        Ok(found)
    }
}

/// A parameter that is being read.
struct Reading<'a> {
    name: &'a str,
    value: &'a str,
}

impl Reading<'_> {
    fn refuse(&self, expected: &str) -> Problem {
        let value: String = self.value.chars().take(40).collect();
        Problem::bad_request(format!("{}={value}: expected {expected}", self.name))
    }

    fn count(&self) -> ApiResult<i64> {
        let count = self.value.parse().ok().filter(|count| (1..=LONGEST).contains(count));
        count.ok_or_else(|| self.refuse(&format!("a whole number from 1 to {LONGEST}")))
    }

    fn number(&self) -> ApiResult<f64> {
        // Values are scaled in single precision.
        let number = self.value.parse().ok().filter(|number: &f64| (*number as f32).is_finite());
        number.ok_or_else(|| self.refuse("a finite number"))
    }

    /// Python's words, in any case.
    fn flag(&self) -> ApiResult<bool> {
        match self.value.to_ascii_lowercase().as_str() {
            "true" | "1" => Ok(true),
            "false" | "0" => Ok(false),
            _ => Err(self.refuse("True or False")),
        }
    }

    fn element(&self) -> ApiResult<Element> {
        let real = Element::named(self.value).filter(|element| *element != Element::UInt8);
        real.ok_or_else(|| self.refuse(Element::REALS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_is_understood() {
        let query = "image_format=jpg&output_type=pt&partial_postprocess=False&shape=1&shape=16&shape=128&shape=64\
                     &dtype=bfloat16&scaling_factor=0.3611&shift_factor=0.1159&input_tensor_type=binary";
        let expected = Parameters {
            shape: vec![1, 16, 128, 64],
            element: Some(Element::BFloat16),
            output: Output::Tensor,
            is_jpeg: true,
            scaling_factor: Some(0.3611),
            shift_factor: Some(0.1159),
            ..Parameters::default()
        };
        assert_eq!(Parameters::parse(query).unwrap(), expected);
        let packed = Parameters::parse("shape=1&shape=64&shape=64&height=128&width=128&do_scaling=True").unwrap();
        assert_eq!((packed.height, packed.width, packed.do_scaling), (Some(128), Some(128), true));
        for (query, output) in [
            ("", Output::Picture),
            ("output_type=mp4", Output::Clip),
            ("output_type=pil&partial_postprocess=true", Output::Bytes),
        ] {
            assert_eq!(Parameters::parse(query).unwrap().output, output, "{query}");
        }
    }

    #[test]
    fn a_wrong_parameter_is_named() {
        for (query, words) in [
            ("shape=1&shape=-4", "shape=-4: expected a whole number from 1"),
            ("shape=1&shape=1&shape=1&shape=1&shape=1&shape=1", "shape=1: expected at most 5"),
            ("shape=1.5", "shape=1.5: "),
            ("dtype=float64", "dtype=float64: expected float32, float16 or bfloat16"),
            ("dtype=uint8", "dtype=uint8: "),
            ("output_type=gif", "output_type=gif: expected pil, pt or mp4"),
            ("image_format=bmp", "image_format=bmp: expected jpg or png"),
            ("scaling_factor=0", "scaling_factor=0: expected a number other than 0"),
            ("scaling_factor=1e-46", "scaling_factor=1e-46: expected a number other than 0"),
            ("scaling_factor=1e39", "scaling_factor=1e39: expected a finite number"),
            ("scaling_factor=inf", "scaling_factor=inf: expected a finite number"),
            ("shift_factor=x", "shift_factor=x: "),
            ("do_scaling=maybe", "do_scaling=maybe: expected True or False"),
            ("height=0", "height=0: "),
        ] {
            let problem = Parameters::parse(query).unwrap_err();
            assert!(problem.status == 400 && problem.detail.starts_with(words), "{query}: {}", problem.detail);
        }
    }
}
