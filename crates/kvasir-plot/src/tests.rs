use proptest::prelude::*;

use super::{markup::check_markup, *};

fn plot(points: &[(f64, f64)], mark: Mark, name: &str) -> Plot {
    Plot {
        description: name.to_owned(),
        x: Axis::from_zero("time, s"),
        left: Axis::log(name),
        right: Some(Axis::whole("level", 3)),
        series: [Side::Left, Side::Right]
            .map(|side| Series {
                name: name.to_owned(),
                mark,
                side,
                points: points.iter().map(|&p| Point { label: name.to_owned(), ..p.into() }).collect(),
            })
            .into(),
        guides: [Place::X(1.0), Place::Y(3.0), Place::XRange(0.5, 2.0)]
            .map(|at| Guide { at, label: name.to_owned() })
            .into(),
    }
}

proptest! {
    #[test]
    fn any_text_and_any_numbers_make_well_formed_pages(
        text in any::<String>(), points in prop::collection::vec(any::<(f64, f64)>(), 0..6),
    ) {
        let mut page = Page::new(&text, &text);
        page.figures(&[Figure { value: text.clone(), label: text.clone() }]);
        page.heading(&text);
        page.paragraph(&text);
        page.preformatted(&text);
        for mark in [Mark::Line, Mark::Joined, Mark::Step, Mark::Spans, Mark::Points] {
            page.drawing(&plot(&points, mark, &text).to_svg(), &text);
        }
        let bars = points.iter().map(|p| Bar { label: text.clone(), value: p.0, text: text.clone(), ours: true });
        page.drawing(&Bars { description: text.clone(), bars: bars.collect(), limit: Some((1.0, text.clone())) }.to_svg(), &text);
        page.table(&Table { head: vec![text.clone()], rows: vec![vec![text.clone()]] });
        let html = page.finish(&text);
        prop_assert!(check_markup(&html).is_ok(), "{:?}", check_markup(&html));
        prop_assert!(!html.contains("NaN") || text.contains("NaN"), "no coordinate may be NaN");
    }
}

#[test]
fn a_page_needs_nothing_from_outside() {
    let html = Page::new("t", "l").finish("f");
    for needle in ["http:", "https:", "src=", "@import", "url(", "<script", "<link"] {
        assert!(!html.contains(needle), "{needle}");
    }
}

#[test]
fn every_point_is_drawn() {
    let svg = plot(&[(0.0, 1.0), (1.0, 10.0), (2.0, 100.0)], Mark::Points, "n").to_svg();
    let names = check_markup(&svg).expect("well-formed");
    assert_eq!(names.iter().filter(|n| *n == "circle").count(), 6);
    assert!(svg.contains("c0") && svg.contains("c1"), "series differ in colour");
}

#[test]
fn a_file_of_its_own_names_its_colours() {
    let bar = Bar { label: "n".to_owned(), value: 1.0, text: "1 s".to_owned(), ours: true };
    let bars = Bars { description: "n".to_owned(), bars: vec![bar], limit: None };
    let plot = plot(&[(0.0, 1.0), (1.0, 10.0)], Mark::Joined, "n");
    for file in [plot.to_file(), bars.to_file()] {
        check_markup(&file).expect("well-formed");
        assert!(!file.contains("var(") && !file.contains("table"), "{file}");
        let (light, dark) =
            file.split_once("prefers-color-scheme: dark").expect("colours for either setting");
        for (half, paper) in [(light, "#fcfcfa"), (dark, "#15181d")] {
            assert!(
                half.contains(&format!("svg {{ background: {paper}")) && half.contains("svg .fill.c0"),
                "{file}"
            );
        }
    }
}

#[test]
fn guides_stand_where_their_values_are() {
    let mut plot = plot(&[(0.0, 1.0), (2.0, 100.0)], Mark::Joined, "n");
    plot.guides = vec![Guide { at: Place::Y(10.0), label: "ten".to_owned() }];
    let svg = plot.to_svg();
    let guide = svg.lines().find(|line| line.contains("\"guide\"")).expect("drawn");
    let number = |name: &str| -> f64 {
        let rest = guide.split_once(&format!("{name}=\"")).expect("an attribute").1;
        rest.split_once('"').expect("quoted").0.parse().expect("a number")
    };
    assert_eq!(number("y1"), number("y2"));
    // Halfway between 1 and 100 on a logarithmic axis.
    let ends: Vec<f64> = svg
        .match_indices("class=\"fill c0\" cx=")
        .map(|(at, _)| svg[at..].split_once("cy=\"").expect("a circle").1.split_once('"').expect("quoted").0)
        .map(|text| text.parse().expect("a number"))
        .collect();
    assert!((number("y1") - (ends[0] + ends[1]) / 2.0).abs() < 0.2, "{ends:?} {guide}");
}

#[test]
fn the_checker_notices_what_it_should() {
    for bad in ["<a>", "<a></b>", "a & b", "<a b=c></a>", "<a>x > y</a>", "\u{1}"] {
        assert!(check_markup(bad).is_err(), "{bad}");
    }
    assert!(check_markup("<a b=\"c\">&amp;<d/></a>").is_ok());
}

#[test]
fn a_range_is_shaded_within_the_frame_and_a_line_has_no_dots() {
    let mut plot = plot(&[(0.0, 1.0), (2.0, 100.0)], Mark::Line, "");
    plot.guides = vec![Guide { at: Place::XRange(-3.0, 9.0), label: "x&y".to_owned() }];
    let svg = plot.to_svg();
    let names = check_markup(&svg).expect("well-formed");
    assert!(!names.iter().any(|name| name == "circle") && svg.contains("x&amp;y"), "{svg}");
    let band = svg.lines().find(|line| line.contains("\"band\"")).expect("drawn");
    assert!(band.contains("x=\"68.0\"") && band.contains("width=\"588.0\""), "{band}");
}

#[test]
fn long_labels_of_bars_push_the_bars_aside() {
    let bar = |label: &str| Bar { label: label.to_owned(), value: 1.0, text: "1 s".to_owned(), ours: false };
    let left = |labels: &[&str]| -> f64 {
        let bars = labels.iter().map(|label| bar(label)).collect();
        let svg = Bars { description: String::new(), bars, limit: None }.to_svg();
        let rect = svg.lines().find(|line| line.starts_with("<rect")).expect("drawn");
        let at = rect.split_once(" x=\"").expect("placed").1.split_once('"').expect("quoted").0;
        at.parse().expect("a number")
    };
    assert_eq!(left(&["short"]), 110.0);
    assert!(left(&["short", "LMCache CacheGen, chunks of 2048"]) > 200.0);
}

#[test]
fn a_value_that_is_none_interrupts_a_line() {
    let mut plot = plot(&[(0.0, 1.0), (1.0, 10.0), (2.0, f64::NAN), (3.0, 10.0)], Mark::Line, "n");
    plot.series.truncate(1);
    let svg = plot.to_svg();
    let names = check_markup(&svg).expect("well-formed");
    let count = |name: &str| names.iter().filter(|n| *n == name).count();
    assert_eq!((count("path"), count("circle")), (1, 1), "{svg}");
    assert!(!svg.contains("NaN"), "{svg}");
}
