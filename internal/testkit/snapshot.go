// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"mustang/internal/nl"
)

// snapshotCommands print what a network namespace contains. Those that are not
// installed are left out.
var snapshotCommands = []string{
	"ip -details -oneline link",
	"ip -details -oneline address",
	"ip -details -4 route show table all",
	"ip -details -6 route show table all",
	"ip -4 rule",
	"ip -6 rule",
	"nft --stateless list ruleset",
	"iptables-save",
	"ip6tables-save",
}

// changesByItself matches what differs between two snapshots though nobody
// changed anything: lifetimes, counters, ages, the time.
var changesByItself = regexp.MustCompile(`(?m)(valid_lft|preferred_lft|expires|age|hello_timer|tcn_timer|` +
	`topology_change_timer|gc_timer|users|\bcache) +\S+|\[\d+:\d+\]|^#.*$`)

// volatileSysctls are read-only states, not settings.
var volatileSysctls = map[string]bool{
	"net/netfilter/nf_conntrack_count": true,
}

// RootSnapshot describes the network namespace that the tests run in: devices,
// addresses, routes, rules, firewall and sysctls. Two of them are equal if
// nothing was changed in between.
func RootSnapshot(t testing.TB) string {
	t.Helper()
	namespace, err := nl.CurrentNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer namespace.Close()
	return Snapshot(t, namespace)
}

// Snapshot describes a network namespace like RootSnapshot does.
func Snapshot(t testing.TB, ns *nl.Namespace) string {
	t.Helper()
	RequireTool(t, "ip")
	var out strings.Builder
	for _, line := range snapshotCommands {
		args := strings.Fields(line)
		if _, err := exec.LookPath(args[0]); err != nil {
			continue
		}
		var stdout, stderr strings.Builder
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := ns.Start(cmd); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Fatalf("%s in %s: %v: %s", line, ns.Name(), err, stderr.String())
		}
		fmt.Fprintf(&out, "# %s\n%s\n", line, changesByItself.ReplaceAllString(stdout.String(), "*"))
	}
	if err := ns.Do(func() error { return writeSysctls(&out) }); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// writeSysctls lists the network sysctls of the calling thread's namespace.
func writeSysctls(out *strings.Builder) error {
	// /proc/sys/net, like all of /proc/sys, is that of the thread that reads it.
	const root = "/proc/sys/"
	return filepath.WalkDir(root+"net", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		key := strings.TrimPrefix(path, root)
		if entry.IsDir() || volatileSysctls[key] {
			return nil
		}
		value, err := os.ReadFile(path)
		if err != nil { // write-only, or has no value yet
			return nil
		}
		fmt.Fprintf(out, "%s=%s", key, value)
		return nil
	})
}
