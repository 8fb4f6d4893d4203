// SPDX-License-Identifier: Apache-2.0

// Package engine runs load generators that others wrote, such as iperf3, on the paths that
// Mustang measures with its own. Each runs as its users run it, pinned to the same CPUs and
// with the same congestion control as Mustang's, and its output becomes a
// [load.Measurement].
package engine

import (
	"cmp"
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"mustang/internal/bench/evidence"
	"mustang/internal/debian"
	"mustang/internal/load"
	"mustang/internal/suggest"
)

// Native is the name of Mustang's own load generator, which is none of [List].
const Native = "native"

// Engine is a load generator.
type Engine struct {
	// Name is its name in commands and result files.
	Name string
	tool tool
}

// tool is what differs between engines.
type tool interface {
	// debian returns the Debian package, and the programs of it that the engine needs.
	debian() (name string, programs []string)
	// version returns the version from what the first program prints for --version or -V.
	version(output string) string
	// runs reports whether it carries a workload over a number of flows.
	runs(workload string, flows int) bool
	// reaches returns the reason why it can't measure a path, nil if none is known.
	reaches(p evidence.Path) error
	// serve and drive return the commands of server and client, and port that on which the
	// server awaits the client.
	serve(t Traffic) []string
	drive(t Traffic) []string
	port(t Traffic) uint16
	// serverEnds reports whether the server ends by itself after a client.
	serverEnds() bool
	// read reads what the programs have printed. If it finds no addresses, those of the
	// sockets count.
	read(t Traffic, o outputs) (load.Measurement, error)
}

// List returns all engines.
func List() []Engine {
	return []Engine{{"iperf3", iperf3{}}, {"netperf", netperf{}}, {"sockperf", sockperf{}}}
}

// Lookup returns the engine of a name.
func Lookup(name string) (Engine, error) {
	names := []string{Native}
	for _, e := range List() {
		if e.Name == name {
			return e, nil
		}
		names = append(names, e.Name)
	}
	return Engine{}, fmt.Errorf("unknown engine %q: want one of %s%s", name, strings.Join(names, ", "), suggest.Text(name, names))
}

// Runs reports whether the engine carries a workload over a number of flows, 0 for one.
func (e Engine) Runs(workload string, flows int) bool { return e.tool.runs(workload, max(flows, 1)) }

// Reaches returns the reason why the engine can't measure a path, nil if none is known.
func (e Engine) Reaches(p evidence.Path) error { return e.tool.reaches(p) }

// Probe returns a [*debian.MissingError] if a program that the engine needs is not installed.
func (e Engine) Probe() error {
	name, programs := e.tool.debian()
	for _, program := range programs {
		if _, err := debian.Find(program, name, ""); err != nil {
			return err
		}
	}
	_, err := debian.Find(pinner, "util-linux", "")
	return err
}

// versionTimeout limits the call of a program that prints its version.
const versionTimeout = 2 * time.Second

// Version returns the installed version, "" if it is unknown.
func (e Engine) Version(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	_, programs := e.tool.debian()
	for _, flag := range []string{"--version", "-V"} {
		if output, err := exec.CommandContext(ctx, programs[0], flag).Output(); err == nil {
			return cmp.Or(e.tool.version(string(output)), "unknown")
		}
	}
	return ""
}
