//! What the documents say of the tree is so.

use std::fs;
use std::path::{Path, PathBuf};

use streamvm::program::CompileOptions;
use streamvm::stream::mutant::Mutant;
use streamvm::{DType, DeviceId, InstructionsBuilder, MemoryKind, Place, PlanOptions, Shape, Tensor, Var, plan};
use streamvm_cli::analysis::plan::MAX_UNROLLED;
use streamvm_cli::emit::programs;
use streamvm_cli::execute::run::MAX_DRY;
use streamvm_cli::syntax::{lexer, parser};
use streamvm_tests::{conformance, faults, hazards};

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The folders of the crates of the library and of the command.
pub(crate) const CRATES: [&str; 12] = [
    "ep",
    "ep/kernels",
    "ep/cpu",
    "ep/cuda",
    "ep/sim",
    "stream",
    "instructions",
    "program",
    "vm",
    "jobs",
    "verify",
    "cli",
];

/// The files of a folder and of those in it, by how their names end.
pub(crate) fn files_of(folder: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of the tree") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files_of(&path, ending, found);
        } else if path.extension().is_some_and(|extension| extension == ending) {
            found.push(path);
        }
    }
}

/// Every file of the engine with unsafe code is named in ARCHITECTURE.md, itself or by its folder; and what is named
/// is there.
#[test]
fn files_with_unsafe_code_are_named() {
    let root = root();
    let page = fs::read_to_string(root.join("ARCHITECTURE.md")).expect("the page");
    let named: Vec<&str> =
        page.split('`').filter(|word| word.contains("/src/") && !word.contains(char::is_whitespace)).collect();
    for name in &named {
        assert!(root.join(name).exists(), "ARCHITECTURE.md names {name}, which is not there");
    }
    let mut files = Vec::new();
    for member in CRATES {
        files_of(&root.join(member).join("src"), "rs", &mut files);
    }
    let mut checked = 0;
    for file in files {
        let text = fs::read_to_string(&file).expect("a source");
        let tests_only = file.file_stem().is_some_and(|stem| {
            let stem = stem.to_string_lossy();
            stem == "tests" || stem.ends_with("_tests")
        });
        let code = text.lines().map(|line| line.split("//").next().unwrap_or(""));
        let unsafe_code = code.filter(|line| ["unsafe {", "unsafe impl", "unsafe fn"].iter().any(|u| line.contains(u)));
        if tests_only || unsafe_code.count() == 0 {
            continue;
        }
        checked += 1;
        let relative = file.strip_prefix(&root).expect("below the root").to_string_lossy().into_owned();
        let is_named =
            named.iter().any(|name| relative == *name || (name.ends_with('/') && relative.starts_with(name)));
        assert!(is_named, "{relative} has unsafe code and is not named in ARCHITECTURE.md");
    }
    assert!(checked > 5, "the search finds the files that are known to have some");
}

/// The anchors of a page's headings, as they are made on its web page: lower case, with hyphens for spaces, without other characters.
fn anchors_of(page: &str) -> Vec<String> {
    let prose = page.split("```").step_by(2).collect::<String>();
    let headings = prose.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let text = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        text.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect()
    };
    headings.map(anchor).collect()
}

/// Links between documents lead to files, and to headings that these have. No page has a heading twice.
#[test]
fn links_of_the_documents_lead_to_files_and_headings() {
    let root = root();
    let mut pages = Vec::new();
    files_of(&root.join("docs"), "md", &mut pages);
    assert!(pages.len() > 50, "the search finds the decisions too");
    pages.extend(["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|name| root.join(name)));
    for page in pages {
        let text = fs::read_to_string(&page).expect("a page");
        let mut own = anchors_of(&text);
        let count = own.len();
        own.sort_unstable();
        own.dedup();
        // Each version has the same chapters.
        assert!(own.len() == count || page.ends_with("CHANGELOG.md"), "{} has a heading twice", page.display());
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.starts_with("http") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.clone() } else { page.parent().expect("a folder").join(file) };
            assert!(target.exists(), "{} links to {link}", page.display());
            if !heading.is_empty() {
                let anchors = anchors_of(&fs::read_to_string(&target).expect("a page with headings"));
                assert!(anchors.iter().any(|anchor| anchor == heading), "{} links to {link}", page.display());
            }
        }
    }
}

/// Where a page says "`name` in [file](path)", the file defines that name.
#[test]
fn files_define_what_the_documents_look_for_there() {
    let mut checked = 0;
    for page in ["ARCHITECTURE.md", "docs/extending.md", "docs/adding.md", "docs/adding-steps.md"] {
        let page = root().join(page);
        let text = fs::read_to_string(&page).expect("a page");
        for (before, behind) in text.match_indices("` in [").map(|(at, found)| (&text[..at], &text[at + found.len()..]))
        {
            let name = before
                .rsplit('`')
                .next()
                .and_then(|name| name.rsplit("::").next())
                .expect("a name")
                .trim_end_matches('!');
            let path = behind.split("](").nth(1).and_then(|rest| rest.split([')', '#']).next()).expect("a link");
            let file = page.parent().expect("a folder").join(path);
            if file.extension().is_none_or(|extension| extension != "rs") {
                continue;
            }
            let source = fs::read_to_string(&file).expect("a source");
            let defines = |word: &str| {
                ["(", "<", " ", ";", ":"].iter().any(|end| source.contains(&format!("{word} {name}{end}")))
            };
            let words = ["fn", "struct", "enum", "trait", "const", "static", "mod", "type", "macro_rules!"];
            assert!(words.iter().any(|word| defines(word)), "{}: {path} defines no `{name}`", page.display());
            checked += 1;
        }
    }
    assert!(checked > 4, "{checked} names found");
}

/// The plan on the front page is the one that a list of a copy and a kernel gets.
#[test]
fn the_plan_on_the_front_page_is_that_of_its_list() {
    let page = fs::read_to_string(root().join("README.md")).expect("the page");
    let host =
        Tensor::unbound(Place::Host, MemoryKind::Pageable, DType::F32, Shape::new(&[1797, 64]).expect("a shape"));
    let mut builder = InstructionsBuilder::new();
    let x = builder.copy(&host, DeviceId::cuda(0)).expect("a copy");
    builder.relu(&x).expect("an op");
    let plan = plan(builder.finish(), &PlanOptions::default()).expect("a plan").list.to_string();
    let lines: Vec<&str> = plan.lines().filter(|line| line.starts_with('%')).collect();
    assert!(page.contains(&format!("```text\n{}\n```", lines.join("\n"))), "the plan is\n{plan}");
}

/// The plan on the page about lists is the one that its program prints.
#[test]
fn the_plan_on_the_page_about_lists_is_that_of_its_list() {
    let page = fs::read_to_string(root().join("docs/lists.md")).expect("the page");
    let source = Tensor::unbound(Place::Host, MemoryKind::Pageable, DType::F32, Shape::new(&[2]).expect("a shape"));
    let mut b = InstructionsBuilder::new();
    let x = b.copy(&source, DeviceId::cuda(0)).expect("a copy");
    let seen = Var::new();
    let y = b.add(&x, &x).expect("an op");
    let host = b.copy(&y, Place::Host).expect("a copy");
    b.on_workers().push("look", DeviceId::cpu(0), [host.read(), seen.write()], || Ok(()));
    let plan = plan(b.finish(), &PlanOptions::default()).expect("a plan").list.to_string();
    assert!(page.contains(&format!("```text\n{plan}```")), "the plan is\n{plan}");
}

/// What stands in backticks on a page.
fn code_of(page: &str) -> Vec<&str> {
    page.split('`').skip(1).step_by(2).collect()
}

/// What `docs/cuda.md` names of the interface and of the driver is there.
#[test]
fn what_the_page_about_cuda_names_is_there() {
    let root = root();
    let page = fs::read_to_string(root.join("docs/cuda.md")).expect("the page");
    // Without the programs, which are run.
    let prose: String = page.split("```").step_by(2).collect();
    let mut files = Vec::new();
    for member in CRATES {
        files_of(&root.join(member).join("src"), "rs", &mut files);
    }
    let text: String = files.iter().map(|file| fs::read_to_string(file).expect("a source")).collect();
    let driver = fs::read_to_string(root.join("ep/cuda/src/driver/mod.rs")).expect("the driver");
    let mut checked = 0;
    for code in code_of(&prose) {
        if let Some((_, name)) = code.split_once("::") {
            let name = name.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or(name);
            let is_there =
                [format!("fn {name}("), format!("fn {name}<"), format!("pub {name}:"), format!(" {name} {{")]
                    .into_iter()
                    .chain([format!("    {name},\n"), format!("    {name}(")])
                    .any(|declaration| text.contains(&declaration));
            assert!(is_there, "docs/cuda.md names `{code}`");
            checked += 1;
        } else if code.starts_with("cu") && code[2..].starts_with(char::is_uppercase) {
            // The one that is said not to be called.
            let is_called = driver.contains(&format!("    \"{code}"));
            assert_eq!(is_called, code != "cuMemAllocAsync", "{code}");
            checked += 1;
        }
    }
    assert!(checked > 15, "{checked} names found");
}

/// How many of something the pages say there are is how many the suites have.
#[test]
fn counts_on_the_pages_are_those_of_the_suites() {
    let (hazards, faults, kinds) = (hazards::Kind::all().len(), faults::What::ALL.len(), faults::kinds().len());
    let (cases, broken) = (conformance::cases().len(), conformance::broken::flaws().len());
    let claims = [
        ("docs/reliability.md", format!("{faults} faults × {kinds} kinds of instruction")),
        ("docs/reliability.md", format!("with one thing wrong, of {hazards} kinds")),
        ("docs/reliability.md", format!("{cases} cases that every execution provider runs")),
        ("docs/reliability.md", format!("{broken} kinds of broken backends")),
        ("docs/reliability.md", format!("{} broken rules of the engine", Mutant::ALL.len())),
        ("README.md", format!("{hazards} kinds of planted races")),
    ];
    for (name, claim) in claims {
        let page = fs::read_to_string(root().join(name)).expect("a page");
        assert!(page.contains(&claim), "{name} does not say \"{claim}\"");
    }
}

/// A number as the pages write it, with commas.
fn grouped(number: u64) -> String {
    if number < 1000 { number.to_string() } else { format!("{},{:03}", grouped(number / 1000), number % 1000) }
}

/// Limits, defaults and counts of instructions on the pages are those of the code.
#[test]
fn limits_on_the_pages_are_those_of_the_code() {
    let CompileOptions { search_steps, smallest_graph, block, most_rounds, .. } = CompileOptions::default();
    let millions = |number: u64| format!("{} million", number / 1_000_000);
    let (steps, all_steps) = (programs::MAX_STEPS as u64, programs::MAX_ALL_STEPS as u64);
    let counts = fs::read_to_string(root().join("benches/instructions.json")).expect("the committed counts");
    let counts: serde_json::Value = serde_json::from_str(&counts).expect("JSON");
    let count = |case: &str| grouped(counts["x86_64-linux"][case].as_f64().expect("a count") as u64);
    let claims = [
        ("compiling", format!("({} unless it is set)", grouped(search_steps))),
        ("compiling", format!("on blocks of at most {block} elements")),
        ("programs", format!("`CompileOptions::most_rounds` rounds together, {} by default", millions(most_rounds))),
        ("compiling", format!("`CompileOptions::smallest_graph` calls of the driver, {smallest_graph} by default")),
        ("cuda", format!("The default is {smallest_graph}")),
        ("language", format!("{} if not given", millions(most_rounds))),
        ("language", format!("| length of a word | {} |", lexer::MAX_WORD)),
        ("language", format!("| length of a line | {} bytes |", grouped(lexer::MAX_LINE as u64))),
        ("language", format!("| nesting of blocks and parentheses | {} |", parser::MAX_NESTING)),
        ("language", format!("| count of a `repeat` | 1 to {} |", grouped(parser::MAX_REPEAT))),
        ("language", format!("| lane | 0 to {} |", parser::MAX_LANE)),
        ("language", format!("| steps of a program | {};", grouped(steps))),
        ("language", format!("| steps of all programs together | {} |", grouped(all_steps))),
        ("language", format!("while the list has fewer than {} instructions", grouped(MAX_UNROLLED as u64))),
        ("language", format!("while the run has fewer than {} instructions", grouped(MAX_DRY))),
        ("performance", format!("| chain in lists | {} |", count("chain_lists"))),
        ("performance", format!("| chain, one at a time | {} |", count("chain_single"))),
        ("performance", format!("| random on one lane | {} |", count("random_one_lane"))),
    ];
    for (name, claim) in claims {
        let page = fs::read_to_string(root().join(format!("docs/{name}.md"))).expect("a page");
        assert!(page.contains(&claim), "docs/{name}.md does not say \"{claim}\"");
    }
}

/// `make` has the targets that the documents name.
#[test]
fn targets_that_the_documents_name_are_there() {
    let root = root();
    let makefile = fs::read_to_string(root.join("Makefile")).expect("the Makefile");
    let mut checked = 0;
    for page in ["README.md", "CONTRIBUTING.md", "docs/reliability.md", "docs/performance.md", "docs/cuda.md"] {
        let text = fs::read_to_string(root.join(page)).expect("a page");
        for rest in code_of(&text).into_iter().filter_map(|code| code.strip_prefix("make ")) {
            let target = rest.split([' ', '\n']).next().unwrap_or(rest);
            assert!(makefile.contains(&format!("\n{target}:")), "{page} names `make {target}`");
            checked += 1;
        }
    }
    assert!(checked > 15, "{checked} targets found");
}

/// The life of an instruction, which is to be read in one sitting, has few files.
#[test]
fn the_life_of_an_instruction_leads_through_few_files() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("the page");
    let (_, life) = page.split_once("## The life of an instruction").expect("it has the chapter");
    let table: Vec<&str> =
        life.lines().skip_while(|line| !line.starts_with('|')).take_while(|l| l.starts_with('|')).collect();
    let files: Vec<&str> =
        table.iter().flat_map(|row| row.split("](").skip(1)).filter_map(|rest| rest.split(')').next()).collect();
    assert!((15..=25).contains(&files.len()), "{} files: leave out what matters least", files.len());
    let mut once = files.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), files.len(), "a file is named twice: {files:?}");
}
