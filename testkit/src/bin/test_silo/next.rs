//! The test silo, with the next release of the messages that tests mix: another binary.

#[path = "main.rs"]
mod desk;
mod lines;
#[path = "program_next.rs"]
mod program;

fn main() -> std::process::ExitCode {
    desk::run()
}
