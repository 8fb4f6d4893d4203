// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"mustang/internal/result"
)

// programs lists the program counters that rose while the row ran, with between
// set between name and count.
func (e *entry) programs(between string) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(e.Evidence.ProgramRuns)) {
		if n := e.Evidence.ProgramRuns[name]; n > 0 {
			out = append(out, clean(name)+between+number(float64(n), 0))
		}
	}
	return out
}

// devices lists what each device on the way saw.
func (e *entry) devices() []string {
	var out []string
	for _, d := range e.Evidence.Devices {
		name := clean(d.Name)
		if d.Host != "" {
			name = clean(d.Host) + "/" + name
		}
		out = append(out, fmt.Sprintf("%s rx %s tx %s", name, number(float64(d.RxPackets), 0), number(float64(d.TxPackets), 0)))
	}
	return out
}

// ends lists the addresses that client and server saw.
func (e *entry) ends() []string {
	var out []string
	for _, end := range []struct {
		name string
		result.Addresses
	}{{"client", e.Evidence.Client}, {"server", e.Evidence.Server}} {
		if end.Local != "" || end.Peer != "" {
			out = append(out, fmt.Sprintf("%s %s to %s", end.name, clean(end.Local), clean(end.Peer)))
		}
	}
	if a := e.Evidence.Attachments; a != nil {
		out = append(out, fmt.Sprintf("%d attached, %d detached", a.Added, a.Removed))
		if a.Reached != "" {
			out = append(out, "a pod reached "+clean(a.Reached))
		}
		if len(a.Kept) > 0 {
			out = append(out, "the host keeps "+clean(strings.Join(a.Kept, ", ")))
		}
	}
	if n := e.Evidence.Connections; n > 0 {
		out = append(out, strconv.Itoa(n)+" in the connection table")
	}
	return out
}

// hooks lists the netfilter hooks with rules that packets met.
func (e *entry) hooks() []string {
	var out []string
	for _, hook := range e.Evidence.Hooks {
		out = append(out, clean(hook))
	}
	return out
}

// findings lists in words what does not fit.
func (e *entry) findings() []string {
	var out []string
	for _, f := range e.Evidence.Findings {
		out = append(out, clean(f))
	}
	return out
}
