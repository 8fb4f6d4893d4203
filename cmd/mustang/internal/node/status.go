// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"mustang/internal/datapath"
	"mustang/internal/datapath/flows"
	"mustang/internal/datapath/objects"
)

// statusReport is the state of a datapath, also as JSON.
type statusReport struct {
	Schema int    `json:"schema"`
	Root   string `json:"root"`
	// More than one layout, or another than this program's, is a fault.
	objects.Pins
	// Drops are the packets that the programs dropped since the maps were created, by reason.
	Drops []statusDrop `json:"drops"`
	// Policies is the number of network policies. If they are audited, what they deny passes.
	Policies struct {
		Count   int  `json:"count"`
		Audited bool `json:"audited"`
	} `json:"policies"`
	// Unguarded are the pods of this node that may send from any address, by NAMESPACE/NAME.
	Unguarded []string  `json:"source_guard_off"`
	Features  []feature `json:"features"`
	Findings  []finding `json:"amiss"`
}

// statusDrop is the number of packets that the programs dropped for one reason.
type statusDrop struct {
	Name    string `json:"name"`
	Packets uint64 `json:"packets"`
	Meaning string `json:"-"`
}

// finding is one fault.
type finding struct {
	// What is the fault, and Do the remedy: one line each.
	What string `json:"what"`
	Do   string `json:"do"`
}

// feature is an eBPF feature of the kernel.
type feature struct {
	Name string `json:"name"`
	// Required is set if no service works without the feature.
	Required  bool `json:"required"`
	Available bool `json:"available"`
	// Missing is the reason why the kernel lacks it.
	Missing string `json:"missing,omitzero"`
	// Needs is what provides it: a Linux version, an option of the kernel's configuration, a command.
	Needs string `json:"-"`
}

// fullPart is the part of a map's rows from which on the map is reported.
const fullPart = 0.8

// lookAgain is the time between two checks of a state that another process may be changing.
const lookAgain = 500 * time.Millisecond

// readStatus reads the datapath under root, objects.DefaultRoot if empty. Problems are findings, not errors.
func readStatus(ctx context.Context, root string) (*statusReport, error) {
	if os.Geteuid() != 0 {
		return nil, objects.ErrNotRoot
	}
	r := &statusReport{Schema: statusSchema, Root: cmp.Or(root, objects.DefaultRoot)}
	r.readFeatures()
	err := r.Read(r.Root)
	if errors.Is(err, os.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return nil, err
	}
	for _, dir := range r.Unloaded {
		r.find("mustang datapath unload", "a killed process left pins in %q", dir)
	}
	own := fmt.Sprintf("v%d", objects.LayoutVersion)
	for _, name := range r.Layouts {
		if name != own {
			r.find("mustang reset", "maps have layout %s, and this build has %s", name, own)
		}
	}
	if !slices.Contains(r.Layouts, own) {
		return r, nil
	}
	r.checkPins()
	return r, r.readTables(ctx)
}

func (r *statusReport) find(do, what string, args ...any) {
	r.Findings = append(r.Findings, finding{What: fmt.Sprintf(what, args...), Do: do})
}

// checkPins finds programs of other builds, and maps that are nearly full. It skips LRU maps, which evict rows, and the
// connection table, whose limit is its slots.
func (r *statusReport) checkPins() {
	for _, m := range r.Maps {
		if m.Size > 0 && m.Kind != "LRUHash" && m.Name != "connections" && float64(m.Rows) >= fullPart*float64(m.Size) {
			r.find("remove rows, or mustang datapath unload and larger maps", "map %s has %d of %d rows", m.Name, m.Rows,
				m.Size)
		}
	}
	for _, p := range r.Programs {
		if !p.Current {
			r.find("the next command that adds something replaces it", "program %s (%d links) is of another build", p.Pin,
				p.Attached)
		}
	}
}

func (r *statusReport) readFeatures() {
	required := []string{"bpffs", "BTF", "BPF JIT", "tcx"}
	for _, f := range objects.Features(r.Root) {
		_, err := f.Probe()
		feature := feature{Name: f.Name, Required: slices.Contains(required, f.Name), Available: err == nil, Needs: f.Needs}
		if err != nil {
			feature.Missing = err.Error()
		}
		r.Features = append(r.Features, feature)
		switch {
		case !feature.Required || err == nil:
		case f.Name == "bpffs": // which every kernel with BPF has
			r.find(f.Needs, "%s is not on a bpffs, %s: none is mounted there", r.Root, f.Use)
		default:
			r.find(f.Needs, "the kernel lacks %s, %s: %v", f.Name, f.Use, err)
		}
	}
}

// readTables reads the parts of the report that require tables of this program's layout.
func (r *statusReport) readTables(ctx context.Context) (err error) {
	d, err := datapath.OpenExisting(datapath.Options{Root: r.Root})
	var layout *objects.LayoutError
	switch {
	case errors.Is(err, os.ErrNotExist):
		r.find("any command that adds something", "maps are missing")
		return nil
	case errors.As(err, &layout):
		if len(r.Layouts) == 1 {
			r.find("mustang reset", "maps have another layout than this build's of the same number")
		}
		return nil
	case err != nil:
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	counters, err := d.Flows().Counters()
	if err != nil {
		return err
	}
	for _, c := range counters {
		if c.Drop {
			r.Drops = append(r.Drops, statusDrop{c.Name, c.Packets, c.Meaning})
		}
	}
	policies, err := d.Policies().List()
	var auditErr error
	r.Policies.Audited, auditErr = d.Policies().Audited()
	if err := errors.Join(err, auditErr); err != nil {
		return err
	}
	r.Policies.Count = len(policies)
	endpoints, err := d.Endpoints().List(ctx)
	if err != nil {
		return err
	}
	if err := cmp.Or(r.readGuards(d, endpoints), r.checkConnections(d.ConnectionTable())); err != nil {
		return err
	}
	r.checkEndpoints(endpoints)
	r.checkLinkGroups()
	return cmp.Or(r.checkSources(ctx, d, endpoints), r.checkRemains(ctx, d), r.checkHost(ctx, d, endpoints))
}

// readGuards names the pods whose source guard is off.
func (r *statusReport) readGuards(d *datapath.Datapath, endpoints []datapath.Endpoint) error {
	if err := d.Endpoints().Describe(endpoints); err != nil {
		return err
	}
	off := map[netip.Addr]bool{}
	for _, e := range endpoints {
		if !e.Guarded {
			off[e.IP] = true
		}
	}
	if len(off) == 0 {
		return nil
	}
	s, err := d.Policies().Snapshot()
	if err != nil {
		return err
	}
	for _, p := range s.Pods {
		if slices.ContainsFunc(p.Addresses, func(a netip.Addr) bool { return off[a] }) {
			r.Unguarded = append(r.Unguarded, p.Namespace+"/"+p.Name)
		}
	}
	slices.Sort(r.Unguarded)
	return nil
}

// checkConnections finds a connection table that is nearly full. Its rows in the report are the open connections.
func (r *statusReport) checkConnections(table flows.Table) error {
	stats, err := table.Stats()
	if err != nil {
		return err
	}
	for i := range r.Maps {
		if r.Maps[i].Name == "slots" {
			r.Maps[i].Rows, r.Maps[i].Size = int64(stats.Open()), int64(stats.Slots)
		}
	}
	warnings, err := table.Warnings(0)
	for _, what := range warnings {
		r.find("mustang datapath unload and --connections", "%s", what)
	}
	return err
}

// checkRemains finds remains of killed or failed processes. A second look excludes most changes in progress.
func (r *statusReport) checkRemains(ctx context.Context, d *datapath.Datapath) error {
	remains, err := d.Remains()
	if err != nil || len(remains) == 0 {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(lookAgain):
	}
	still, err := d.Remains()
	for _, what := range remains {
		if slices.Contains(still, what) {
			r.find("the next command that adds or removes something deletes it", "a change that did not end left %s", what)
		}
	}
	return err
}
