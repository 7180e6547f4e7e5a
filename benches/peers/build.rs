//! Writes the code of tonic's service, without a `protoc`.

fn main() {
    let files = protox::compile(["echo.proto"], ["."]).expect("the service is well-formed");
    tonic_prost_build::configure()
        .bytes(".")
        .compile_fds(files)
        .expect("cargo gives a folder to write to");
    println!("cargo::rerun-if-changed=echo.proto");
}
