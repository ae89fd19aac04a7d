//! The export as Parquet, read by the format's own library.

use parquet::{file::reader::FileReader, file::serialized_reader::SerializedFileReader, record::RowAccessor};

use super::*;

fn exported(history: &History, filter: &Filter) -> (Exported, SerializedFileReader<fs::File>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("history.parquet");
    let exported = history.export_parquet(filter, fs::File::create(&path).unwrap()).unwrap();
    (exported, SerializedFileReader::new(fs::File::open(&path).unwrap()).unwrap())
}

#[test]
fn every_record_is_a_row_with_the_columns_of_the_table() {
    let place = TestFolder::new();
    let mut history = place.open();
    let mut failed = picture(30, 256);
    failed.outcome = None;
    for record in [&picture(10, 0), &picture(20, 256), &failed] {
        history.append(DEVICE, record).unwrap();
    }
    let (told, reader) = exported(&history, &Filter::default());
    assert_eq!(told, Exported { records: 3, unreadable: 0 });
    let rows: Vec<_> = reader.get_row_iter(None).unwrap().map(|row| row.unwrap()).collect();
    let column = |name: &str| rows[0].get_column_iter().position(|(found, _)| found == name).unwrap();
    let [time, device, tile, elapsed, is_failed, record] =
        ["time", "device", "tile_height", "elapsed_ns", "failed", "record"].map(column);
    assert_eq!(
        rows.iter().map(|row| row.get_timestamp_millis(time).unwrap()).collect::<Vec<_>>(),
        [10_000, 20_000, 30_000]
    );
    assert!(rows.iter().all(|row| row.get_string(device).unwrap() == DEVICE));
    assert_eq!(rows.iter().map(|row| row.get_long(tile).ok()).collect::<Vec<_>>(), [None, Some(256), Some(256)]);
    assert_eq!(
        rows.iter().map(|row| row.get_long(elapsed).ok()).collect::<Vec<_>>(),
        [Some(10_000_000), Some(20_000_000), None]
    );
    assert_eq!(rows.iter().map(|row| row.get_bool(is_failed).unwrap()).collect::<Vec<_>>(), [false, false, true]);
    let found = AnyRecord::from_json(rows[1].get_string(record).unwrap()).unwrap();
    assert_eq!(as_vae(&found).unwrap(), &picture(20, 256));
}

#[test]
fn rows_go_out_in_groups_and_filters_hold() {
    let place = TestFolder::new();
    let mut history = place.open();
    for second in 0..5000 {
        history.append(DEVICE, &picture(second, 0)).unwrap();
    }
    history.connection.execute_batch("UPDATE trial SET record = '{}' WHERE elapsed_ns = 7000000").unwrap();
    let (told, reader) = exported(&history, &Filter::default());
    assert_eq!(told, Exported { records: 4999, unreadable: 1 });
    assert_eq!(reader.num_row_groups(), 2);
    assert_eq!(reader.get_row_iter(None).unwrap().count(), 4999);
    let (told, reader) = exported(&history, &Filter { policy: Some("nobody".into()), ..Filter::default() });
    assert_eq!((told.records, reader.get_row_iter(None).unwrap().count()), (0, 0));
    let (told, reader) = exported(&History::empty().unwrap(), &Filter::default());
    assert_eq!((told.records, reader.metadata().file_metadata().schema_descr().num_columns()), (0, 23));
}
