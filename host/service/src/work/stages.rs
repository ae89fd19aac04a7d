//! The records of a job's stages in one text, each as it was written.

use serde::de::IgnoredAny;

const BEGIN: &str = r#"{"stages":["#;
const END: &str = "]}";

/// One text of the records of a job's stages, in order.
pub fn join_stages(records: &[String]) -> String {
    format!("{BEGIN}{}{END}", records.join(","))
}

/// The records in a text: those of stages, or the whole text.
pub fn split_stages(text: &str) -> Vec<&str> {
    let Some(mut rest) = text.strip_prefix(BEGIN).and_then(|rest| rest.strip_suffix(END)) else { return vec![text] };
    let mut found = Vec::new();
    while !rest.is_empty() {
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<IgnoredAny>();
        let (Some(Ok(_)), end) = (values.next(), values.byte_offset()) else { break };
        let (record, behind) = rest.split_at(end);
        found.push(record);
        rest = behind.strip_prefix(',').unwrap_or(behind);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_as_they_were_written() {
        let records = [r#"{"b":[1,{"a":"]},{"}]}"#, r#"{"a":2}"#].map(str::to_owned);
        let text = join_stages(&records);
        assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok());
        assert_eq!(split_stages(&text), records);
        assert_eq!(split_stages(&records[0]), [&records[0]]);
        assert_eq!(split_stages(&join_stages(&[])), [""; 0]);
    }
}
