//! A table's JSON, a plan per line, so that a text diff can compare two tables.

use std::fmt::{self, Write as _};

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, IgnoredAny, MapAccess, Visitor},
};
use serde_json::to_string as json;
use tilewright_plan::{Each, FieldOf, Vae, each, of_each, of_kinds};

use super::{Case, Table};
use crate::simulate::Simulated;

impl Table {
    /// The table as JSON, a plan per line, so that a text diff can compare two tables.
    ///
    /// # Errors
    /// The table has a number that JSON lacks; no table that was read or built has one.
    pub fn text(&self) -> Result<String, serde_json::Error> {
        let mut text = format!(
            "{{\"tilewright_table\":{},\n\"name\":{},\n\"about\":{},\n\"device\":{}",
            self.tilewright_table,
            json(&self.name)?,
            json(&self.about)?,
            json(&self.device)?
        );
        text.extend(of_kinds!(W => self.list::<W>()?));
        text.push_str("}\n");
        Ok(text)
    }

    /// The list of a kind's cases behind the fields before it. Every table has the list of decodes
    /// and encodes, and the others only if something is in them.
    fn list<W: Simulated>(&self) -> Result<String, serde_json::Error> {
        let cases = W::cases(self);
        if cases.is_empty() && W::KEY != Vae::KEY {
            return Ok(String::new());
        }
        let cases = cases.iter().map(|case| Ok(format!("\n{}", case.text()?)));
        let cases = cases.collect::<Result<Vec<_>, serde_json::Error>>()?;
        Ok(format!(",\n\"{}\":[{}]", W::KEY, cases.join(",")))
    }
}

impl<W: Simulated> Case<W> {
    /// The case as JSON, a plan per line.
    fn text(&self) -> Result<String, serde_json::Error> {
        let stage = self.stage.map_or(Ok(String::new()), |stage| Ok(format!("\"stage\":{},\n", json(&stage)?)))?;
        let mut text = format!(
            "{{{stage}\"request\":{},\n\"offer\":{},\n\"plans\":[",
            json(&self.request)?,
            json(&self.capabilities)?
        );
        for (index, entry) in self.plans.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            // Writing to a text can't fail.
            let _ = write!(text, "{comma}\n{}", json(entry)?);
        }
        text.push_str("]}");
        Ok(text)
    }
}

/// Reads by hand what serde's derive would, since a key of cases is that of a kind of work.
impl<'de> Deserialize<'de> for Table {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Fields)
    }
}

struct Fields;

type CasesOf<W> = Vec<Case<W>>;

impl<'de> Visitor<'de> for Fields {
    type Value = Table;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("struct Table")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Table, M::Error> {
        let (mut format, mut name, mut about, mut device) = (None, None, None, None);
        let mut cases: each!(Option<CasesOf>) = Each::default();
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "tilewright_table" => read(&mut map, "tilewright_table", &mut format)?,
                "name" => read(&mut map, "name", &mut name)?,
                "about" => read(&mut map, "about", &mut about)?,
                "device" => read(&mut map, "device", &mut device)?,
                key => {
                    let is_read = of_kinds!(W => {
                        if key == W::KEY {
                            read(&mut map, W::KEY, W::of_mut(&mut cases))?;
                        }
                        key == W::KEY
                    });
                    if !is_read.into_iter().any(|is_read| is_read) {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
            }
        }
        let missing = M::Error::missing_field;
        Ok(Table {
            tilewright_table: format.ok_or_else(|| missing("tilewright_table"))?,
            name: name.ok_or_else(|| missing("name"))?,
            about: about.ok_or_else(|| missing("about"))?,
            device: device.ok_or_else(|| missing("device"))?,
            cases: of_each!(cases, cases => cases.unwrap_or_default()),
        })
    }
}

/// Reads the value of a key, which may stand there once.
fn read<'de, M: MapAccess<'de>, T: Deserialize<'de>>(
    map: &mut M,
    key: &'static str,
    value: &mut Option<T>,
) -> Result<(), M::Error> {
    if value.is_some() {
        return Err(M::Error::duplicate_field(key));
    }
    *value = Some(map.next_value()?);
    Ok(())
}
