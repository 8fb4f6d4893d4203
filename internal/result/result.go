// SPDX-License-Identifier: Apache-2.0

// Package result holds the types of results.json.
package result

import "time"

// Names and limits of result files.
const (
	// Schema is the version of the layout; readers refuse others. A new name or unit of a field needs a new number.
	Schema     = 2
	MaxSamples = 100_000        // the maximum number of samples of a row or comparison
	LinkHost   = "host"         // the [Row.Link] of rows without a pod's link
	FileName   = "results.json" // the result file in a run's directory
	PageName   = "report.html"  // the report beside the result file
	// LatestName is the symbolic link to the last run that has a result, beside the directories of runs.
	LatestName = "latest"
	// Kinds of paths, see [Comparison.Class]: the paths of one kind are about as noisy.
	ClassKernel    = "kernel"
	ClassTwoCPUs   = "two CPUs"         // whose ends have a CPU each
	ClassUserSpace = "user space"       // through a process
	ClassGuests    = "virtual machines" // through guests
)

// Values of [Run.Clock].
const (
	ClockTime = "time" // elapsed time
	// ClockInstructions is the clock of an emulated machine, one nanosecond for each instruction. No figure is a time.
	ClockInstructions = "instructions"
)

// File is the whole of results.json.
type File struct {
	Schema int `json:"schema"` // the layout's version, see [Schema]
	Run    Run `json:"run"`    // describes the machine, the settings and the method
	// Suites say how to present the rows of each suite, in the order in which a report shows them.
	Suites []Suite `json:"suites"`
	Rows   []Row   `json:"rows"` // the measurements in the suites' order. [Key] identifies a row.
}

// Run holds what all rows of a file share. It has neither the name nor an address of the machine.
type Run struct {
	// Suite is the name of the suite, such as "pod-links"; of several, with spaces between; or "all".
	Suite   string  `json:"suite"`
	Machine Machine `json:"machine"`         // describes the hardware, as far as the kernel shows it
	Clock   string  `json:"clock,omitempty"` // [ClockTime], the default for an empty string, or [ClockInstructions]
	Kernel  string  `json:"kernel"`          // the running kernel's release, as uname -r prints it
	// Versions maps a program ("go", "mustang", "iptables") to its version, and "guest kernel" to the version of the
	// kernel's package if it ran in a guest.
	Versions map[string]string `json:"versions"`
	// Settings are kernel settings that influence the figures, such as "tcp_congestion_control", "clocksource",
	// "mitigations".
	Settings map[string]string `json:"settings"`
	// Offloads maps an offload ("tso", "gro") to "on" or "off" for the lab's devices.
	Offloads map[string]string `json:"offloads"`
	Pinning  map[string]int    `json:"pinning"` // maps a process ("client", "server") to the CPU that it ran on
	// Seed is the seed of the rows' order. It stays below 2^53, so that any JSON reader can hold it.
	Seed uint64 `json:"seed"`
	// Rounds is the planned number of samples of each row; 0 if it was as many as TimeSeconds allowed.
	Rounds int `json:"rounds"`
	// TimeSeconds is the planned time of a suite whose rows take turns in slices, with the building of its networks; 0
	// if Rounds bounds it.
	TimeSeconds float64 `json:"time_seconds,omitempty"`
	// SliceSeconds is the length of a turn; 0 if rows do not take turns in slices. A sample has two turns. The warm-up
	// before a turn is a tenth of it.
	SliceSeconds float64 `json:"slice_seconds,omitempty"`
	// TurnSeconds is the time of all turns whose samples count. The rest of a run builds networks, opens connections and
	// checks evidence.
	TurnSeconds float64 `json:"turn_seconds,omitempty"`
	// DurationSeconds is the measured time of one sample; 0 if samples are a number of packets, transactions or calls.
	DurationSeconds float64      `json:"duration_seconds"`
	WarmupSeconds   float64      `json:"warmup_seconds"`    // the warm-up before it
	Started         time.Time    `json:"started"`           // when the run began
	Finished        time.Time    `json:"finished,omitzero"` // when it ended; absent while it runs
	Quick           bool         `json:"quick"`             // marks a short run, too short for claims
	Interrupted     bool         `json:"interrupted"`       // marks a run that stopped before its last round
	Notes           []string     `json:"notes,omitempty"`   // remarks about the run as a whole
	Comparisons     []Comparison `json:"comparisons"`       // ratios of rows within each round
	Traces          []Trace      `json:"traces,omitempty"`  // the steps of the rows' packets
}

// Machine is the hardware as the kernel shows it.
type Machine struct {
	CPUModel       string `json:"cpu_model"`      // the processor's name
	CPUs           int    `json:"cpus"`           // the number of processors that are online
	MemoryBytes    uint64 `json:"memory_bytes"`   // the memory that the kernel can use
	Arch           string `json:"arch"`           // the architecture as uname -m prints it
	Virtualisation string `json:"virtualisation"` // the hypervisor's name, "yes" when it hides its name, or "none"
}

// Counted reports whether the figures are instructions, so that lower is better.
func (r Run) Counted() bool { return r.Clock == ClockInstructions }

// Comparison is the ratio of two rows within each round, which cancels slow drift of the machine.
type Comparison struct {
	Name  string `json:"name"`  // describes the comparison, such as "cluster-ip / pod-ip, veth+ebpf"
	Suite string `json:"suite"` // the suite of both rows
	// Workload is the workload of both rows, and Flows their number of connections; 0 means 1.
	Workload    string `json:"workload"`
	Flows       int    `json:"flows,omitempty"`
	Setup       Setup  `json:"setup,omitzero"` // the setup of both rows
	Numerator   string `json:"numerator"`      // the ID of the row above the line
	Denominator string `json:"denominator"`    // the ID of the row below the line
	// Ratios holds one ratio per round. Where rows took turns and there is an interval, it is empty: the rows' samples
	// and positions have them.
	Ratios []float64 `json:"ratios"`
	Rounds int       `json:"rounds,omitempty"` // the number of rounds that both rows have; 0: as many as Ratios
	// Ratio is the estimated ratio: their median, or where rows took turns the geometric mean of the labs' centers.
	Ratio float64 `json:"ratio"`
	// CI95 is the 95 % interval of the ratio: of Student's t over the units of Over, or of the order statistics of their
	// median. nil if there are too few.
	CI95 *[2]float64 `json:"ci95"`
	AA   bool        `json:"aa"` // marks two measurements of one path, whose difference is noise
	// Asks is the question of the suite's answer that the ratio answers: [AsksRank], [AsksProxy], [AsksService],
	// [AsksTotal] or [AsksBigTCP]; empty for further comparisons.
	Asks string `json:"asks,omitempty"`

	// The other fields are set for rows that took turns.

	// Over is the highest level whose chance the interval holds: "lab", "process", "connection" or "round".
	Over  string `json:"over,omitempty"`
	Class string `json:"class,omitempty"` // names the kind of the paths, whose noise is alike
	// P is the p-value of the hypothesis that the ratio is 1. AdjustedP is corrected for all claims of the answer (Holm).
	P         float64 `json:"p,omitempty"`
	AdjustedP float64 `json:"adjusted_p,omitempty"`
	Verdict   string  `json:"verdict,omitempty"` // what the ratio shows
	Shares    Shares  `json:"shares,omitzero"`   // the levels' shares in the variance of a ratio
}

// RoundsDone returns the number of rounds that both rows have.
func (c Comparison) RoundsDone() int { return max(c.Rounds, len(c.Ratios)) }

// Values of [Comparison.Asks].
const (
	// AsksRank is a row divided by the best row that may win. In a matrix, the rows of pod IPs may win, without the
	// kernel's service proxy rules and without BIG TCP.
	AsksRank = "rank"
	// AsksProxy is the pod IP in a network with a service proxy, divided by the pod IP in one without: what the proxy
	// costs all traffic.
	AsksProxy   = "proxy"
	AsksService = "service" // a cluster IP divided by the pod IP of the same network: the cost of a Service on top
	// AsksTotal is a cluster IP divided by the pod IP in a network without a service proxy: both costs together.
	AsksTotal = "total"
	// AsksBigTCP is a pod IP with BIG TCP divided by the same without.
	AsksBigTCP = "big-tcp"
)

// Values of [Comparison.Verdict].
const (
	VerdictLower  = "lower"  // the numerator is lower
	VerdictNone   = "none"   // no difference was found
	VerdictHigher = "higher" // the numerator is higher
)

// Shares are shares in a variance; their sum is 1.
type Shares struct {
	Lab        float64 `json:"lab"`
	Process    float64 `json:"process"`
	Connection float64 `json:"connection"`
	Round      float64 `json:"round"`
}

// Classes lists the classes, the quietest first. Rows that took no turns have the first, empty one.
func Classes() []string { return []string{"", ClassKernel, ClassTwoCPUs, ClassUserSpace, ClassGuests} }

// Values of [Suite.Layout].
const (
	// LayoutMatrix has a line for each connection, with columns for the pod IP and for each kind of cluster IP.
	LayoutMatrix = "matrix"
	// LayoutList has a line for each row ID.
	LayoutList = "list"
)

// Parts of [Suite.Answer]. The first part of an answer is its headline.
const (
	AnswerFastest    = "fastest"    // names the best row and the rows that are tied with it
	AnswerReference  = "reference"  // compares all rows with the reference, which does not compete
	AnswerTally      = "tally"      // counts the results of the statements that [Statement.Tally] marks
	AnswerStatements = "statements" // gives the result of each statement
	// AnswerGrid gives a table with a line for each group and a column for each series.
	AnswerGrid = "grid"
)

// Colors of a [Series]. A page chooses the shades.
const (
	ColorGray   = "gray"
	ColorSlate  = "slate"
	ColorOrange = "orange"
	ColorPurple = "purple"
	ColorBlue   = "blue"
	ColorTeal   = "teal"
	ColorOlive  = "olive"
)

// Suite says how to present the rows of a suite. It names rows by ID; a row that the file does not hold is left out.
type Suite struct {
	Name     string `json:"name"`     // the suite's name, as in [Row.Suite]
	Question string `json:"question"` // the question that the suite answers
	Layout   string `json:"layout"`   // [LayoutMatrix] or [LayoutList]
	// Answer lists the parts of the answer to the question in their order. Readers ignore the names of others, which
	// files of earlier versions have.
	Answer []string `json:"answer"`
	// Reference is the ID of the row that all others are compared with; empty for no comparison.
	Reference string `json:"reference,omitempty"`
	// TransactionTime compares rows with the reference in time per transaction rather than in transactions per second.
	TransactionTime bool `json:"transaction_time,omitempty"`
	// PacketPath lists the devices and netfilter hooks that packets of each row pass.
	PacketPath bool    `json:"packet_path,omitempty"`
	Variants   bool    `json:"variants,omitempty"` // shows the variant of each row
	Groups     []Group `json:"groups,omitempty"`   // gathers rows under captions in charts
	// Series gives rows a color and a name in legends. Target, via and datapath give them to rows without a series.
	Series []Series `json:"series,omitempty"`
	// [AnswerTally] compares Subject and Object, such as "Open vSwitch" and "Linux bridge".
	Subject    string      `json:"subject,omitempty"`
	Object     string      `json:"object,omitempty"`
	Statements []Statement `json:"statements,omitempty"` // comparisons that the answer prints
	Notes      []string    `json:"notes,omitempty"`      // remarks on the suite's rows
}

// Group is a caption and the IDs of the rows below it.
type Group struct {
	Caption string   `json:"caption"`
	Rows    []string `json:"rows"`
}

// Series is a kind of rows that a chart shows in one color.
type Series struct {
	Name  string   `json:"name"`
	Color string   `json:"color"`
	Rows  []string `json:"rows"`
}

// Statement is a caption and the pairs of rows whose difference follows it.
type Statement struct {
	Caption string `json:"caption"`         // begins the sentence, without a colon
	Pairs   []Pair `json:"pairs"`           // the rows to compare
	Tally   bool   `json:"tally,omitempty"` // makes the pairs count in [AnswerTally]
	// Subject and Object, such as "on two CPUs" and "on one", sum up the pairs in a sentence: throughput on two CPUs
	// falls to 9 to 22 % of that on one. Empty for none.
	Subject string `json:"subject,omitempty"`
	Object  string `json:"object,omitempty"`
}

// Pair is two rows to compare, by ID. Label names the pair, and may be empty where it is the only one.
type Pair struct {
	Numerator   string `json:"numerator"`
	Denominator string `json:"denominator"`
	Label       string `json:"label,omitempty"`
}
