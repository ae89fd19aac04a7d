//! The export as Parquet, a row for each record, for programs that compute with tables.

use std::{io::Write, mem, sync::Arc};

use parquet::{
    basic::Compression,
    data_type::{BoolType, ByteArray, ByteArrayType, Int64Type},
    errors::ParquetError,
    file::{
        properties::WriterProperties,
        writer::{SerializedFileWriter, SerializedRowGroupWriter},
    },
    schema::parser::parse_message_type,
};
use rusqlite::types::ValueRef;
use tilewright_plan::records::AnyRecord;

use crate::{Error, Exported, Filter, History, Result, query::MATCHING};

/// The type of a column.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Text,
    OptionalText,
    Number,
    OptionalNumber,
    /// Milliseconds since 1970, UTC.
    Time,
    Flag,
}

/// The columns, named as in the table; `record` is the record's JSON and `profile` that of its
/// profile.
const COLUMNS: [(&str, Kind); 23] = [
    ("time", Kind::Time),
    ("device", Kind::Text),
    ("device_name", Kind::Text),
    ("model", Kind::Text),
    ("family", Kind::Text),
    ("stage", Kind::Text),
    ("height", Kind::Number),
    ("width", Kind::Number),
    ("frames", Kind::Number),
    ("batch", Kind::Number),
    ("size", Kind::Number),
    ("policy", Kind::Text),
    ("space", Kind::Text),
    ("tile_height", Kind::OptionalNumber),
    ("tile_width", Kind::OptionalNumber),
    ("overlap", Kind::OptionalNumber),
    ("precision", Kind::Text),
    ("layout", Kind::Text),
    ("elapsed_ns", Kind::OptionalNumber),
    ("peak_bytes", Kind::OptionalNumber),
    ("failed", Kind::Flag),
    ("record", Kind::Text),
    ("profile", Kind::OptionalText),
];

/// The place of the record among the columns.
const RECORD: usize = 21;

/// Rows, and bytes of texts, that are held before they are written.
const MOST_HELD: usize = 4096;
const MOST_HELD_BYTES: usize = 16 << 20;

/// The values of a column that are held; none is absent.
enum Values {
    Texts(Vec<Option<ByteArray>>),
    Numbers(Vec<Option<i64>>),
    Flags(Vec<bool>),
}

impl Values {
    fn none(kind: Kind) -> Self {
        match kind {
            Kind::Text | Kind::OptionalText => Self::Texts(Vec::new()),
            Kind::Number | Kind::OptionalNumber | Kind::Time => Self::Numbers(Vec::new()),
            Kind::Flag => Self::Flags(Vec::new()),
        }
    }

    /// Holds a value; returns the bytes that it takes.
    fn push(&mut self, value: ValueRef<'_>) -> rusqlite::Result<usize> {
        match self {
            Self::Texts(texts) => {
                let text = value.as_str_or_null()?;
                texts.push(text.map(ByteArray::from));
                Ok(text.map_or(0, str::len))
            }
            Self::Numbers(numbers) => {
                numbers.push(value.as_i64_or_null()?);
                Ok(8)
            }
            Self::Flags(flags) => {
                flags.push(value.as_i64()? != 0);
                Ok(1)
            }
        }
    }
}

fn schema() -> String {
    let field = |(name, kind): &(&str, Kind)| match kind {
        Kind::Text => format!("required binary {name} (STRING);"),
        Kind::OptionalText => format!("optional binary {name} (STRING);"),
        Kind::Number => format!("required int64 {name};"),
        Kind::OptionalNumber => format!("optional int64 {name};"),
        Kind::Time => format!("required int64 {name} (TIMESTAMP(MILLIS,true));"),
        Kind::Flag => format!("required boolean {name};"),
    };
    format!("message history {{ {} }}", COLUMNS.iter().map(field).collect::<String>())
}

impl History {
    /// Writes every record as a row of a Parquet file, oldest first.
    ///
    /// # Errors
    /// SQLite can't read, the file is damaged, or [`Error::Write`].
    pub fn export_parquet(&self, filter: &Filter, to: impl Write + Send) -> Result<Exported> {
        let sqlite = |cause| Error::sqlite(&self.path, cause);
        let names: Vec<&str> = COLUMNS.iter().map(|(name, _)| *name).collect();
        let query = format!("SELECT {} {MATCHING} ORDER BY time, id", names.join(", "));
        let mut statement = self.connection.prepare(&query).map_err(sqlite)?;
        let mut rows = statement.query(filter.values()).map_err(sqlite)?;

        let schema = parse_message_type(&schema()).map_err(unwritten)?;
        let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
        let mut writer = SerializedFileWriter::new(to, Arc::new(schema), Arc::new(properties)).map_err(unwritten)?;
        let nothing = || COLUMNS.map(|(_, kind)| Values::none(kind));
        let (mut held, mut held_rows, mut held_bytes) = (nothing(), 0, 0);
        let mut exported = Exported::default();
        while let Some(row) = rows.next().map_err(sqlite)? {
            let text: String = row.get(RECORD).map_err(sqlite)?;
            if AnyRecord::from_json(&text).is_none() {
                exported.unreadable += 1;
                continue;
            }
            for (place, values) in held.iter_mut().enumerate() {
                let value = row.get_ref(place).map_err(sqlite)?;
                held_bytes += values.push(value).map_err(sqlite)?;
            }
            exported.records += 1;
            held_rows += 1;
            if held_rows >= MOST_HELD || held_bytes >= MOST_HELD_BYTES {
                write_group(writer.next_row_group().map_err(unwritten)?, &mem::replace(&mut held, nothing()))?;
                (held_rows, held_bytes) = (0, 0);
            }
        }
        if held_rows > 0 {
            write_group(writer.next_row_group().map_err(unwritten)?, &held)?;
        }
        writer.close().map_err(unwritten)?;
        Ok(exported)
    }
}

fn write_group<W: Write + Send>(mut group: SerializedRowGroupWriter<'_, W>, held: &[Values]) -> Result<()> {
    for ((_, kind), values) in COLUMNS.iter().zip(held) {
        let Some(mut column) = group.next_column().map_err(unwritten)? else { break };
        // A level is 1 where an optional value is there.
        let written = match values {
            Values::Texts(texts) => {
                let (levels, there) = present(texts);
                let levels = matches!(kind, Kind::OptionalText).then_some(&levels[..]);
                column.typed::<ByteArrayType>().write_batch(&there, levels, None)
            }
            Values::Numbers(numbers) => {
                let (levels, there) = present(numbers);
                let levels = matches!(kind, Kind::OptionalNumber).then_some(&levels[..]);
                column.typed::<Int64Type>().write_batch(&there, levels, None)
            }
            Values::Flags(flags) => column.typed::<BoolType>().write_batch(flags, None, None),
        };
        written.map_err(unwritten)?;
        column.close().map_err(unwritten)?;
    }
    group.close().map(drop).map_err(unwritten)
}

fn present<T: Clone>(values: &[Option<T>]) -> (Vec<i16>, Vec<T>) {
    (values.iter().map(|value| value.is_some().into()).collect(), values.iter().flatten().cloned().collect())
}

/// The error of an output that can't be written.
fn unwritten(error: ParquetError) -> Error {
    match error {
        ParquetError::External(cause) => match cause.downcast::<std::io::Error>() {
            Ok(cause) => Error::Write(*cause),
            Err(cause) => Error::Write(std::io::Error::other(cause)),
        },
        error => Error::Write(std::io::Error::other(error)),
    }
}
