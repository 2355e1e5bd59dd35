//! The table: measurements, predictions and targets.

use std::error::Error;

use kvasir_cuda::CudaDevice;

/// Rows in the order of measurement.
pub(crate) struct Report {
    rows: Vec<[String; 7]>,
    device: String,
    multiprocessors: usize,
    small: bool,
}

/// One measurement.
pub(crate) struct Row<'a> {
    /// Model, tokens, chunks.
    pub(crate) what: String,
    /// The operation.
    pub(crate) step: &'a str,
    /// bf16 bytes on the cache side.
    pub(crate) bytes: usize,
    /// Time of the kernels, if timed separately.
    pub(crate) kernels_ms: Option<f64>,
    /// From the call to the rows.
    pub(crate) wall_ms: Option<f64>,
    /// The prediction for an H200 by the model of the design and the README, and the target.
    pub(crate) predicted: &'a str,
}

impl Report {
    /// An empty table for a device.
    pub(crate) fn new(device: &CudaDevice, small: bool) -> Result<Self, Box<dyn Error>> {
        let multiprocessors = device.multiprocessors();
        Ok(Self { rows: Vec::new(), device: device.name()?, multiprocessors, small })
    }

    /// Adds a measurement. Figures of small shapes are omitted because they are not meaningful.
    pub(crate) fn add(&mut self, row: &Row<'_>) {
        let figure = |value: Option<f64>, digits: usize| match value {
            Some(value) if !self.small => format!("{value:.digits$}"),
            _ => "-".into(),
        };
        let gigabytes = row.bytes as f64 / 1e9;
        let rate = row.kernels_ms.map(|ms| gigabytes / ms * 1e3);
        let cost = row.kernels_ms.map(|ms| ms / 1e3 * self.multiprocessors as f64 / gigabytes.max(1e-12));
        self.rows.push([
            row.what.clone(),
            row.step.into(),
            figure(row.kernels_ms, 3),
            figure(rate, 1),
            figure(cost, 3),
            figure(row.wall_ms, 3),
            row.predicted.into(),
        ]);
    }

    /// Prints it.
    pub(crate) fn print(&self) {
        println!("{}, {} SMs", self.device, self.multiprocessors);
        if self.small {
            println!("small shapes on this device are a rehearsal: no figure is printed");
        }
        let head =
            ["what", "step", "kernels ms", "GB/s bf16", "SM-s/GB", "wall ms", "predicted, to reach (H200)"]
                .map(String::from);
        let lines = || std::iter::once(&head).chain(&self.rows);
        let width = |column: usize| lines().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..7).map(width).collect();
        for row in lines() {
            let cells: Vec<String> = row
                .iter()
                .zip(&widths)
                .map(|(cell, width)| format!("{cell:<width$}", width = *width))
                .collect();
            println!("{}", cells.join("  ").trim_end());
        }
    }
}
