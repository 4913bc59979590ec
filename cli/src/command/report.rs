//! The tables of streams and devices that the command prints, and their JSON forms.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::json;

use crate::base::engine::{DeviceInfo, OpProfile, Profile, SyncCounts, Times, WorkerProfile};

/// Instructions and syncs of one stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamRow {
    /// The stream.
    pub stream: String,
    /// Instructions of the program, without waits and records.
    pub instructions: u64,
    /// Waits that the device or its thread context makes.
    pub device_waits: u64,
    /// Waits for which the scheduler holds the next instruction of the stream back.
    pub host_waits: u64,
    /// Events recorded.
    pub records: u64,
}

impl From<&SyncCounts> for StreamRow {
    fn from(counts: &SyncCounts) -> Self {
        Self {
            stream: counts.stream.to_string(),
            instructions: counts.instructions,
            device_waits: counts.device_waits,
            host_waits: counts.host_waits,
            records: counts.records,
        }
    }
}

/// One line per stream, and a line with the totals if there are several streams.
#[must_use]
pub fn stream_table(rows: &[StreamRow]) -> String {
    let line = |row: &StreamRow| {
        [row.stream.clone()]
            .into_iter()
            .chain([row.instructions, row.device_waits, row.host_waits, row.records].map(|count| count.to_string()))
            .collect()
    };
    let mut lines: Vec<Vec<String>> = rows.iter().map(line).collect();
    if rows.len() > 1 {
        lines.push(line(&StreamRow {
            stream: "total".into(),
            instructions: rows.iter().map(|row| row.instructions).sum(),
            device_waits: rows.iter().map(|row| row.device_waits).sum(),
            host_waits: rows.iter().map(|row| row.host_waits).sum(),
            records: rows.iter().map(|row| row.records).sum(),
        }));
    }
    table(&["stream", "instructions", "device waits", "host waits", "records"], &lines, 1)
}

/// One line per device.
#[must_use]
pub fn device_table(devices: &[DeviceInfo]) -> String {
    let lines: Vec<Vec<String>> = devices
        .iter()
        .map(|device| {
            let memory = device.memory_limit.map_or("no limit".into(), size);
            vec![device.id.to_string(), device.name.clone(), device.units.to_string(), memory]
        })
        .collect();
    table(&["device", "name", "units", "memory"], &lines, 2)
}

/// A JSON array with one object per device: `device`, `kind`, `index`, `name`, `units`, and
/// `memory_limit` in bytes or null.
#[must_use]
pub fn devices_json(devices: &[DeviceInfo]) -> String {
    let list: Vec<serde_json::Value> = devices
        .iter()
        .map(|device| {
            json!({
                "device": device.id.to_string(),
                "kind": device.id.kind.to_string(),
                "index": device.id.index,
                "name": device.name,
                "units": device.units,
                "memory_limit": device.memory_limit,
            })
        })
        .collect();
    format!("{:#}\n", serde_json::Value::Array(list))
}

/// A number of bytes in its largest fitting unit.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["B", "KiB", "MiB", "GiB"];
    let power = (0..UNITS.len()).rev().find(|power| bytes >= 1 << (10 * power)).unwrap_or(0);
    if power == 0 {
        return format!("{bytes} B");
    }
    format!("{:.1} {}", bytes as f64 / (1_u64 << (10 * power)) as f64, UNITS[power])
}

/// A JSON array with one object per op and stream: `op`, `stream`, `count`, `failed`, `skipped`, `queued` and `ran` (each
/// `total`, `min`, `max`, `p50`, `p99` in nanoseconds), and `workers` (each `worker`, `count`, `total`).
#[must_use]
pub fn profile_json(profile: &Profile) -> String {
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let times = |times: &Times| {
        let Times { total, min, max, p50, p99, .. } = *times;
        let [total, min, max, p50, p99] = [total, min, max, p50, p99].map(nanos);
        json!({ "total": total, "min": min, "max": max, "p50": p50, "p99": p99 })
    };
    let op = |op: &OpProfile| {
        let worker = |by: &WorkerProfile| json!({ "worker": by.worker, "count": by.count, "total": nanos(by.total) });
        json!({
            "op": op.name,
            "stream": op.stream.to_string(),
            "count": op.count,
            "failed": op.failed,
            "skipped": op.skipped,
            "queued": times(&op.queued),
            "ran": times(&op.ran),
            "workers": op.workers.iter().map(worker).collect::<Vec<_>>(),
        })
    };
    format!("{:#}", serde_json::Value::from_iter(profile.ops.iter().map(op)))
}

/// Aligned columns, two spaces apart; the first `left` are aligned left, the others right.
pub(crate) fn table(head: &[&str], lines: &[Vec<String>], left: usize) -> String {
    let head: Vec<String> = head.iter().map(|text| (*text).to_owned()).collect();
    let all = || std::iter::once(&head).chain(lines);
    let widths: Vec<usize> =
        (0..head.len()).map(|column| all().map(|line| line[column].chars().count()).max().unwrap_or(0)).collect();
    let mut out = String::new();
    for line in all() {
        let mut row = String::new();
        for (column, (text, width)) in line.iter().zip(&widths).enumerate() {
            if column > 0 {
                row.push_str("  ");
            }
            // Writing to a String cannot fail.
            let _ = if column < left { write!(row, "{text:<width$}") } else { write!(row, "{text:>width$}") };
        }
        out.push_str(row.trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align_and_totals_add_up() {
        let row = |stream: &str, instructions| StreamRow {
            stream: stream.into(),
            instructions,
            device_waits: 0,
            host_waits: 1,
            records: 0,
        };
        assert_eq!(
            stream_table(&[row("h2d@cpu:0:0", 7), row("compute@cpu:0:0", 10)]),
            "stream           instructions  device waits  host waits  records\n\
             h2d@cpu:0:0                 7             0           1        0\n\
             compute@cpu:0:0            10             0           1        0\n\
             total                      17             0           2        0\n"
        );
    }

    #[test]
    fn sizes_are_readable() {
        assert_eq!(size(512), "512 B");
        assert_eq!(size(3 << 29), "1.5 GiB");
    }
}
