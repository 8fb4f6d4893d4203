// SPDX-License-Identifier: Apache-2.0

// Package result holds the types of results.json, the file that a benchmark
// writes as its rows finish and that reports are made from. It does no
// measuring and no printing.
//
// The file carries its schema's number. A reader refuses a number that it does
// not know, so a field may be added at any time, but never renamed or given
// another unit without raising [Schema].
package result

import "time"

// Schema is the version of the file's layout that this package reads and
// writes.
const Schema = 1

// Values of [Run.Clock].
const (
	// ClockTime is what a clock on the wall shows.
	ClockTime = "time"
	// ClockInstructions is the clock of an emulated machine that advances by one
	// nanosecond with each instruction: nothing of it is time.
	ClockInstructions = "instructions"
)

// File is the whole of results.json.
type File struct {
	// Schema is the layout's version, see [Schema].
	Schema int `json:"schema"`
	// Run says where, when and how the rows were measured.
	Run Run `json:"run"`
	// Rows are the measured ways, in the suites' order. A row is unique by its
	// [Key].
	Rows []Row `json:"rows"`
}

// Run is what all rows of a file share. It names no host and no address of the
// machine.
type Run struct {
	// Suite is the suite's name, such as "pod-links", or "all": then each row says
	// which it is of.
	Suite string `json:"suite"`
	// Machine describes the hardware, as far as the kernel shows it.
	Machine Machine `json:"machine"`
	// Clock says what figures are made of: [ClockTime], which an empty string
	// means as well, or [ClockInstructions]. All rows of a file share it.
	Clock string `json:"clock,omitempty"`
	// Kernel is the running kernel's release, as uname -r prints it.
	Kernel string `json:"kernel"`
	// Versions maps a program ("go", "mustang", "iptables") to its version, and
	// "guest kernel" to that of the kernel's package if it ran in a guest.
	Versions map[string]string `json:"versions"`
	// Settings are kernel settings that move the figures, such as
	// "tcp_congestion_control", "clocksource", "mitigations".
	Settings map[string]string `json:"settings"`
	// Offloads maps an offload ("tso", "gro") to "on" or "off" for the lab's
	// devices.
	Offloads map[string]string `json:"offloads"`
	// Pinning maps a process ("client", "server") to the CPU that it ran on.
	Pinning map[string]int `json:"pinning"`
	// Seed is the seed of the rows' order and of the bootstrap. It stays below
	// 2^53, so that any JSON reader can hold it.
	Seed uint64 `json:"seed"`
	// Rounds is how many times each row was to be measured.
	Rounds int `json:"rounds"`
	// DurationSeconds is the measured time of one sample; 0 where all samples are a
	// number of packets, transactions or calls.
	DurationSeconds float64 `json:"duration_seconds"`
	// WarmupSeconds is the time before it that is not counted.
	WarmupSeconds float64 `json:"warmup_seconds"`
	// Started is when the run began.
	Started time.Time `json:"started"`
	// Finished is when it ended; absent as long as it runs.
	Finished time.Time `json:"finished,omitzero"`
	// Quick says that the run was a short one, not meant for claims.
	Quick bool `json:"quick"`
	// Interrupted says that the run was stopped before its last round.
	Interrupted bool `json:"interrupted"`
	// Notes are remarks about the run as a whole.
	Notes []string `json:"notes,omitempty"`
	// Comparisons set rows against each other within each round.
	Comparisons []Comparison `json:"comparisons"`
}

// Machine is the hardware as the kernel shows it.
type Machine struct {
	// CPUModel is the processor's name.
	CPUModel string `json:"cpu_model"`
	// CPUs is the number of processors that are online.
	CPUs int `json:"cpus"`
	// MemoryBytes is the memory that the kernel can use.
	MemoryBytes uint64 `json:"memory_bytes"`
	// Arch is the architecture as uname -m prints it.
	Arch string `json:"arch"`
	// Virtualisation is the hypervisor's name, "yes" when it hides its name,
	// or "none".
	Virtualisation string `json:"virtualisation"`
}

// Counted reports whether the figures are instructions and not time, so that
// lower is better.
func (r Run) Counted() bool { return r.Clock == ClockInstructions }

// Comparison is the ratio of two rows, taken within each round, so that slow
// drift of the machine cancels out.
type Comparison struct {
	// Name says what is compared, such as "cluster-ip / pod-ip, veth+ebpf".
	Name string `json:"name"`
	// Suite is the suite of both rows; empty means that of the run.
	Suite string `json:"suite,omitempty"`
	// Workload is the workload of both rows, and Flows how many connections do it;
	// 0 means 1.
	Workload string `json:"workload"`
	Flows    int    `json:"flows,omitempty"`
	// Numerator is the ID of the row above the line.
	Numerator string `json:"numerator"`
	// Denominator is the ID of the row below the line.
	Denominator string `json:"denominator"`
	// Ratios holds one ratio per round.
	Ratios []float64 `json:"ratios"`
	// Ratio is their median.
	Ratio float64 `json:"ratio"`
	// CI95 is the bootstrap interval of the median, nil under six rounds.
	CI95 *[2]float64 `json:"ci95"`
	// AA says that both rows are the same thing measured twice, so that any
	// difference is noise.
	AA bool `json:"aa"`
}
