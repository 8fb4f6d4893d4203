// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath/kept"
	"mustang/internal/datapath/objects"
	"mustang/internal/testkit"
)

// numbers matches the numbers of endpoints in the names of links.
var numbers = regexp.MustCompile(`/[0-9]+-(host|pod)-`)

// loads matches the commands that may load programs, or remove them.
var loads = regexp.MustCompile(`(ep add|uplink add|socket|datapath) `)

// begun runs a test in the state that a case begins with. Its root may have programs already if the setup loads them.
// In the long form this requires a command that loads none: verifying programs takes longer than all else.
func (n *killNetwork) begun(t *testing.T, c killCase, name string, test func(*killNetwork)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		n := *n
		n.t = t
		n.run("datapath unload") // leftovers of the case before
		if n.kept = len(c.setup) > 0 && c.args != "datapath unload" &&
			(short() || !loads.MatchString(c.args+c.again)); n.kept {
			n.root = kept.Root(t)
		}
		testkit.Succeed(t, os.RemoveAll(n.saved))
		n.runAll(c.setup)
		test(&n)
	})
}

// state is all that is listed, pinned and stored, without ids and revisions.
func (n *killNetwork) state() string {
	n.t.Helper()
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	for _, list := range []string{"svc ls", "ep ls", "uplink ls", "socket ls", "policy ls"} {
		code, stdout, stderr := command(n.t, map[string]string{cli.EnvBPFRoot: n.root}, append(strings.Fields(list),
			"-o=json")...)
		testkit.Require(n.t, code == exitDone, "%s: exit code %d: %s", list, code, stderr)
		add("%s %s", list, regexp.MustCompile(`"id": [0-9]+|endpoint-[0-9]+`).ReplaceAllString(stdout, ""))
	}
	files, _ := filepath.Glob(n.saved + "/*") // with dot files
	for _, file := range files {
		add("%s: %s", file, readText(n.t, file))
	}
	err := filepath.WalkDir(n.root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && n.kept && entry.Name() == "progs" {
			return fs.SkipDir
		}
		add("%s", numbers.ReplaceAllString(strings.TrimPrefix(path, n.root), "/ID-$1-"))
		return err
	})
	if os.IsNotExist(err) {
		return strings.Join(lines, "\n")
	}
	testkit.Succeed(n.t, err)
	slices.Sort(lines[5:]) // ids sort in the order of creation
	o := testkit.Must(objects.Open(n.root))(n.t)
	defer o.Close()
	rows := storedRows(n.t, o)
	slices.Sort(rows)
	return strings.Join(append(lines, rows...), "\n")
}

// dump returns the rows of a table, after edit has removed the parts that differ from run to run.
func dump[K comparable, V any](t *testing.T, what string, table *objects.Table[K, V],
	edit func(*K, *V)) (rows []string) {
	t.Helper()
	for row, err := range table.All() {
		testkit.Succeed(t, err)
		if edit != nil {
			edit(&row.Key, &row.Value)
		}
		rows = append(rows, fmt.Sprintf("%s %+v", what, row))
	}
	return rows
}

func storedRows(t *testing.T, o *objects.Objects) []string {
	t.Helper()
	var ranges []string
	for _, key := range sourceRanges(t, o) {
		key.Revision = 0
		ranges = append(ranges, fmt.Sprintf("source range %+v", key))
	}
	state := testkit.Must(o.NodeState.IDs())(t)
	return slices.Concat(
		dump(t, "service", o.Services, func(_ *objects.ServiceKey, s *objects.Service) { s.Id, s.Revision = 0, 0 }),
		dump(t, "backend", o.Backends, func(k *objects.BackendKey, _ *objects.Backend) { k.Revision = 0 }),
		dump(t, "address", o.ServiceAddrs, nil), ranges,
		dump(t, "table", o.LookUp, func(k *objects.BackendKey, _ *[64]uint16) { k.Revision = 0 }),
		dump(t, "endpoint", o.Endpoints, func(_ *objects.Addr, e *objects.Endpoint) {
			e.Id, e.Egress, e.Ingress = 0, min(e.Egress, 1), min(e.Ingress, 1)
		}),
		dump(t, "sender", o.Senders, func(_ *objects.SenderKey, s *objects.Sender) { s.Endpoint = 0 }),
		policyRows(t, o), dump(t, "device", o.Devices, nil), dump(t, "node address", o.NodeAddresses, nil),
		dump(t, "namespace", o.Namespaces, nil),
		[]string{fmt.Sprintf("retiring %d, host %d", state.Retiring, state.Host)},
	)
}

// policyRows returns the number of rows of each map of policies, in which numbers differ from run to run, and the
// files.
func policyRows(t *testing.T, o *objects.Objects) (rows []string) {
	t.Helper()
	for _, name := range []string{"identities", "verdicts", "policy_ports", "policy_numbers"} {
		n, m := 0, o.Policies[name]
		key, value := make([]byte, m.KeySize()), make([]byte, m.ValueSize())
		list := m.Iterate()
		for list.Next(&key, &value) {
			n++
		}
		testkit.Succeed(t, list.Err())
		rows = append(rows, fmt.Sprintf("%d rows of %s", n, name))
	}
	dir := testkit.Must(o.FilesDir())(t)
	files, err := os.ReadDir(dir)
	testkit.Require(t, err == nil || os.IsNotExist(err), "%v", err)
	for _, file := range files {
		if name := file.Name(); strings.HasPrefix(name, "endpoint-") { // numbers differ
			rows = append(rows, "file of an endpoint")
		} else {
			rows = append(rows, "file "+name)
		}
	}
	force := testkit.Must(o.NodeState.PoliciesInForce())(t)
	return append(rows, fmt.Sprintf("policies in force: %v", force != 0))
}

// sourceRanges returns the keys of all source ranges. The kernel lists the rows of a trie one by one.
func sourceRanges(t *testing.T, o *objects.Objects) (keys []objects.SourceRange) {
	t.Helper()
	var key objects.SourceRange
	var value uint8
	rows := o.SourceRanges.Map.Iterate()
	for rows.Next(&key, &value) {
		keys = append(keys, key)
	}
	testkit.Succeed(t, rows.Err())
	return keys
}

// checkOrphans runs the command of another kind, after which there may be no row or link that belongs to nothing.
func (n *killNetwork) checkOrphans(c killCase, how string) {
	n.t.Helper()
	n.run(c.other)
	o, err := objects.Open(n.root)
	if err != nil {
		return // not all maps are there yet: nothing is in them
	}
	defer o.Close()
	revisions, ids := map[uint32]bool{}, map[uint64]bool{}
	for row := range o.Services.All() {
		revisions[row.Value.Revision] = true
	}
	for row := range o.Backends.All() {
		testkit.Check(n.t, revisions[row.Key.Revision], "%s, then %q: backend %+v of no service", how, c.other, row)
	}
	for row := range o.LookUp.All() {
		testkit.Check(n.t, revisions[row.Key.Revision],
			"%s, then %q: block %d of the table of no service", how, c.other, row.Key.Slot)
	}
	for _, key := range sourceRanges(n.t, o) {
		testkit.Check(n.t, revisions[key.Revision], "%s, then %q: source range %+v of no service", how, c.other, key)
	}
	for row := range o.Endpoints.All() {
		ids[uint64(row.Value.Id)] = true
	}
	parents := map[uint64]bool{}
	for row := range o.Senders.All() {
		parents[uint64(row.Value.Parent)] = true
		testkit.Check(n.t, ids[uint64(row.Value.Endpoint)], "%s, then %q: sender %+v of no endpoint", how, c.other, row)
	}
	links := testkit.Must(o.Links())(n.t)
	for _, k := range links {
		testkit.Check(n.t, !slices.Contains(objects.EndpointHooks(), k.Hook) || ids[k.ID],
			"%s, then %q: link %s of no endpoint", how, c.other, k)
		testkit.Check(n.t, k.Hook.Point != objects.AttachParent && k.Hook.Point != objects.AttachEntrance || parents[k.ID],
			"%s, then %q: link %s, and no pod is on that device", how, c.other, k)
	}
}

// short reports whether tests run in their short form.
func short() bool { return testkit.Repeats(0, 1) == 0 }
