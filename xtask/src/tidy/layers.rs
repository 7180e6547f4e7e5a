//! Layers: an arrow is "may use", and nothing points back up.

use super::{Finding, Repository};

/// For each package that is restricted: its folder, and what it may use of the workspace.
const ARROWS: &[(&str, &[&str])] = &[
    ("core", &[]),
    ("transport", &["siloring-core"]),
    ("storage", &["siloring-core"]),
    ("runtime", &["siloring-core"]),
    ("pubsub", &["siloring-core", "siloring-runtime"]),
    ("macros", &[]),
    ("cli", &["siloring-core", "siloring-storage"]),
    ("xtask", &[]),
];

/// What each folder may not name, whatever its manifest says: the engine is the driver's business.
const ENGINE: &str = concat!("glommio", "::");
const ENGINE_FOLDER: &str = "src/driver/";
/// The engine alone is one of those who are compared with.
const PEERS_FOLDER: &str = "benches/peers/";

/// Each package uses only what lies below it.
pub(super) fn arrows_point_down(repository: &Repository) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (folder, below) in ARROWS {
        let path = format!("{folder}/Cargo.toml");
        let Some(manifest) = repository.text(&path) else {
            findings.push(Finding::in_file(&path, "is missing"));
            continue;
        };
        for (line, used) in used_packages(manifest) {
            if !below.contains(&used) {
                findings.push(Finding::at(&path, line, format!("{folder} may not use {used}")));
            }
        }
    }
    findings
}

/// The workspace's packages among the dependencies of a manifest; tests may use what they like.
fn used_packages(manifest: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_inside = false;
    manifest.lines().enumerate().filter_map(move |(number, line)| {
        if line.starts_with('[') {
            is_inside = line == "[dependencies]";
        }
        let name = line.split(['.', ' ', '=']).next()?;
        (is_inside && name.starts_with("siloring")).then_some((number + 1, name))
    })
}

/// The engine can be replaced because only the drivers know it.
pub(super) fn glommio_is_named_in_drivers_only(repository: &Repository) -> Vec<Finding> {
    let mut findings = Vec::new();
    let may_name = |path: &str| [ENGINE_FOLDER, PEERS_FOLDER].iter().any(|it| path.starts_with(it));
    for (path, text) in repository.rust().filter(|(path, _)| !may_name(path)) {
        for (number, line) in text.lines().enumerate() {
            if !line.trim_start().starts_with("//") && line.contains(ENGINE) {
                findings.push(Finding::at(
                    path,
                    number + 1,
                    format!("{ENGINE} outside {ENGINE_FOLDER}"),
                ));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arrow_that_points_up_or_aside_is_found() {
        let mut files: Vec<(String, &str)> =
            ARROWS.iter().map(|(folder, _)| (format!("{folder}/Cargo.toml"), "")).collect();
        let check = |files: &[(String, &str)]| {
            let files: Vec<(&str, &str)> =
                files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
            arrows_point_down(&Repository::of(&files))
        };
        assert_eq!(check(&files), []);
        files[3].1 = "[dependencies]\nsiloring-core.workspace = true\n\
                      siloring-transport.workspace = true\n\
                      [dev-dependencies]\nsiloring-storage.workspace = true\n";
        let found = check(&files);
        let aside = "runtime may not use siloring-transport";
        assert_eq!(found, [Finding::at("runtime/Cargo.toml", 3, aside)]);
    }

    #[test]
    fn the_engine_outside_its_folder_is_found() {
        let named = format!("// {ENGINE}\nuse {ENGINE}LocalExecutor;\n");
        let check =
            |path| glommio_is_named_in_drivers_only(&Repository::of(&[(path, &named)])).len();
        assert_eq!(check("src/driver/pump.rs"), 0);
        assert_eq!(check("benches/peers/src/glommio.rs"), 0);
        assert_eq!(check("runtime/src/exec.rs"), 1);
    }
}
