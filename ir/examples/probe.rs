use pipewright_ir::placement::Placement;
use pipewright_ir::search::probe;
use pipewright_ir::unit_costs::*;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let (list, imp): (usize, usize) = (args[1].parse().unwrap(), args[2].parse().unwrap());
    let text = std::fs::read_to_string("/tmp/t-h3/heur.txt").unwrap();
    let mut stat = std::collections::BTreeMap::new();
    for line in text.lines() {
        let g: Vec<&str> = line.split(" | ").collect();
        let h: Vec<&str> = g[0].split(' ').collect();
        let (p, m): (u32, u32) = (h[1].parse().unwrap(), h[2].parse().unwrap());
        let c = match h[3] { "unit" => [1., 1., 1.], "f2" => [2., 2., 1.], "FeqB" => [2., 1., 1.], "uneven" => [10., 13., 7.], _ => [10., 9., 12.] };
        let hop: f64 = h[4].parse().unwrap();
        let theirs: f64 = h[5].parse().unwrap();
        let v = if h[0].starts_with("zb-h") { 1 } else { 2 };
        let limit = match h[0] { "zb-h1" => p, "zb-h2" => 2 * p - 1, "zb-v" => p, "v-half" => (p + 2) / 2, _ => (p + 4) / 3 };
        if args.len() > 3 && !args[3].is_empty() && !line.starts_with(&args[3]) { continue; }
        let placement = if v == 1 { Placement::looped(p, 1) } else { Placement::v_shaped(p) };
        let t = ChunkTimes { forward: c[0], backward_input: c[1], backward_weight: c[2] };
        let times = StageTimes { stages: vec![t; (p * v) as usize], hop };
        let (e, b) = probe(&placement, &times, m, f64::from(limit), list, imp).unwrap();
        let nums = |s: &str| s.split(' ').map(|x| x.parse().unwrap()).collect::<Vec<f64>>();
        let span = nums(g[1]).iter().zip(nums(g[2])).map(|(s, e)| e - s).fold(0.0, f64::max);
        let peak = nums(g[3]).into_iter().fold(0.0, f64::max);
        let s: &mut [f64; 7] = stat.entry((h[0].to_string(), h[3].to_string() + h[4])).or_default();
        s[0] += 1.0;
        if e.makespan < theirs { s[1] += 1.0 }
        if e.makespan > theirs || f64::from(e.peak()) > peak { s[2] += 1.0; println!("WORSE {} theirs {theirs} ours {} peak {} {} bound {:?}", g[0], e.makespan, peak, e.peak(), b); }
        s[3] += theirs / e.makespan - 1.0;
        s[4] += e.makespan / b.makespan - 1.0;
        if e.makespan <= b.makespan * 1.0000001 { s[5] += 1.0 }
        if e.longest_span() <= span { s[6] += 1.0 }
        if args.len() > 4 { println!("{} theirs {theirs} ours {} bound {:.1} span {} theirs {span} bound {:.1} peak {}/{}", g[0], e.makespan, b.makespan, e.longest_span(), b.span, e.peak(), peak); }
    }
    for (k, s) in stat { println!("{k:?} rows {} better {} worse {} gain {:.4} gap {:.4} optimal {} span<= {}", s[0], s[1], s[2], s[3] / s[0], s[4] / s[0], s[5], s[6]); }
}
