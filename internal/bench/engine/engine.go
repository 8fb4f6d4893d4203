// SPDX-License-Identifier: Apache-2.0

// Package engine runs load generators by other authors, such as iperf3, on the paths that Mustang measures with its
// own. Each runs with its usual options, pinned to the same CPUs and with the same congestion control as Mustang's.
// Its output becomes a [load.Measurement].
package engine

import (
	"cmp"
	"context"
	"errors"
	"os/exec"
	"regexp"
	"slices"
	"time"

	"mustang/internal/bench/evidence"
	"mustang/internal/bench/host"
	"mustang/internal/distro"
	"mustang/internal/lab"
	"mustang/internal/load"
)

// Engine is a load generator.
type Engine struct {
	Name string // its name in commands and result files
	// debian is the Debian package, and programs are the programs of the package that the engine needs. The first
	// prints a line with version for --version or -V.
	debian     string
	programs   []string
	version    *regexp.Regexp
	workloads  []string // the workloads that the engine carries; over several flows only if many is true
	many       bool
	serverEnds bool   // true if the server exits after a client
	control    uint16 // the port of a control connection, 0 without one
	// serve and drive return the commands of server and client.
	serve, drive func(Traffic) []string
	// read parses the output of the programs. If the output lacks addresses, the addresses of the sockets count.
	read func(Traffic, outputs) (load.Measurement, error)
}

// Traffic describes the load that an engine carries over a path.
type Traffic struct {
	Lab  *lab.Lab
	Path evidence.Path
	// Workload, Flows and Rate are as in [load.Spec].
	Workload string
	Flows    int
	Rate     uint64
	Seconds  int          // the time of the measurement
	CPUs     host.CPUPair // the CPUs of client and server, to which both are pinned
}

type outputs struct{ client, server []byte }

// Runs reports whether the engine carries a workload over a number of flows, 0 for one.
func (e Engine) Runs(workload string, flows int) bool {
	return slices.Contains(e.workloads, workload) && (flows <= 1 || e.many)
}

// Reaches returns the reason why the engine can't measure a path, nil if it can.
func (e Engine) Reaches(p evidence.Path) error {
	if e.control != 0 && p.Connect != p.Listen {
		return errors.New(
			"netperf's server listens on the address that its client connects to, so that address can't be a service's")
	}
	return nil
}

const pinner = "taskset" // the program that pins another one to a CPU

// Probe returns a [*distro.MissingError] if a program that the engine needs is not installed.
func (e Engine) Probe() error {
	for _, program := range e.programs {
		if _, err := distro.Find(program, e.debian, ""); err != nil {
			return err
		}
	}
	_, err := distro.Find(pinner, "util-linux", "")
	return err
}

const versionTimeout = 2 * time.Second // limits the call of a program that prints its version

// Version returns the installed version, "" if it is unknown.
func (e Engine) Version(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	for _, flag := range []string{"--version", "-V"} {
		if output, err := exec.CommandContext(ctx, e.programs[0], flag).Output(); err == nil {
			return cmp.Or(e.versionIn(string(output)), "unknown")
		}
	}
	return ""
}

func (e Engine) versionIn(output string) string {
	if found := e.version.FindStringSubmatch(output); found != nil {
		return found[1]
	}
	return ""
}
