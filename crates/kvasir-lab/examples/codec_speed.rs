//! `kvasir bench codec` without the rest of the program, for work on the kernels: less to link.
//!
//! `cargo run --release -p kvasir-bench --example codec_speed [ROUNDS]`
#![allow(clippy::print_stdout, reason = "an example talks on stdout")]

use kvasir_bench::speed::{codec_speed, speed_verdicts};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rounds = std::env::args().nth(1).map_or(Ok(10), |rounds| rounds.parse())?;
    let rows = codec_speed(rounds, &mut |_| ())?;
    for row in &rows {
        println!("{:13} {:14} {:7.3} Gelem/s at {:.2} bits", row.path, row.op, row.gelem_per_s, row.bits);
    }
    for verdict in speed_verdicts(&rows) {
        println!("{:55} {:7.2} of {:5.2}", verdict.target, verdict.measured, verdict.at_least);
    }
    Ok(())
}
