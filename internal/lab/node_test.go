// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mustang/internal/lab"
	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

func node(disk string) lab.Options {
	return lab.Options{Topology: lab.TopologyNode, Link: lab.LinkHost, Disk: disk}
}

// useNode makes a pod of a node, and writes where plugins do.
func useNode(l *lab.Lab) (*netns.Namespace, error) {
	dirs := l.PluginDirs()
	for _, dir := range []string{dirs.State, dirs.Run} {
		if err := os.WriteFile(filepath.Join(dir, "10.0.0.2"), nil, 0o600); err != nil {
			return nil, err
		}
	}
	return l.AddPod(lab.PodA)
}

func TestNode(t *testing.T) {
	s, disk := store(t), t.TempDir()
	before := testkit.RootSnapshot(t)
	l := testkit.Must(s.Up(t.Context(), options(node(disk))))(t)
	pod := testkit.Must(useNode(l))(t)
	devices, err := rtnl.In(pod).Devices()
	testkit.Check(t, err == nil && devices[0].Name == "lo" && devices[0].Up, "a pod has %v, %v", devices, err)
	dirs := l.PluginDirs()
	testkit.Check(t, filepath.Dir(dirs.State) == disk && strings.HasPrefix(dirs.Run, s.Dir), "directories %+v", dirs)
	_, err = l.AddPod(lab.PodA)
	testkit.Check(t, err != nil, "a second pod of that name")
	err = errors.Join(l.DeletePod(lab.Host), l.DeletePod("nobody"))
	testkit.Check(t, err != nil && strings.Count(err.Error(), "no pod") == 2, "delete what is no pod: %v", err)
	if err := l.DeletePod(lab.PodA); err != nil || slices.Contains(l.Places(), lab.PodA) {
		t.Errorf("delete a pod: %v, places %v", err, l.Places())
	}
	known, err := l.PluginPods()
	testkit.Check(t, err == nil && len(known.Endpoints)+len(known.Sockets) == 0, "pods %v, %v of no datapath", known, err)
	err = l.Close()
	testkit.Check(t, err == nil, "%v", err)
	wantEmpty(t, disk)
	wantEmpty(t, s.Dir+"/labs")
	testkit.Check(t, testkit.RootSnapshot(t) == before, "the root namespace is not as it was")
}

// TestNodeWithoutDisk keeps state beside the lab's record.
func TestNodeWithoutDisk(t *testing.T) {
	s := store(t)
	l := up(t, s, options(node("")))
	dirs := l.PluginDirs()
	testkit.Check(t, strings.HasPrefix(dirs.State, dirs.Run), "directories %+v", dirs)
	_, err := up(t, s, options(lab.Options{Link: "veth"})).AddPod("another")
	testkit.Check(t, err != nil, "a lab with pods gets another")
}
