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

// node is a lab that keeps something on a disk.
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
	if devices, err := rtnl.In(pod).Devices(); err != nil || devices[0].Name != "lo" || !devices[0].Up {
		t.Errorf("a pod has %v, %v", devices, err)
	}
	if dirs := l.PluginDirs(); filepath.Dir(dirs.State) != disk || !strings.HasPrefix(dirs.Run, s.Dir) {
		t.Errorf("directories %+v", dirs)
	}
	if _, err := l.AddPod(lab.PodA); err == nil {
		t.Error("a second pod of that name")
	}
	if err := errors.Join(l.DeletePod(lab.Host), l.DeletePod("nobody")); err == nil ||
		strings.Count(err.Error(), "no pod") != 2 {
		t.Errorf("delete what is no pod: %v", err)
	}
	if err := l.DeletePod(lab.PodA); err != nil || slices.Contains(l.Places(), lab.PodA) {
		t.Errorf("delete a pod: %v, places %v", err, l.Places())
	}
	if known, err := l.PluginPods(); err != nil || len(known.Endpoints)+len(known.Sockets) > 0 {
		t.Errorf("pods %v, %v of no datapath", known, err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	wantEmpty(t, disk)
	wantEmpty(t, s.Dir+"/labs")
	if testkit.RootSnapshot(t) != before {
		t.Error("the root namespace is not as it was")
	}
}

// TestNodeWithoutDisk keeps state beside the lab's record.
func TestNodeWithoutDisk(t *testing.T) {
	s := store(t)
	l := up(t, s, options(node("")))
	if dirs := l.PluginDirs(); !strings.HasPrefix(dirs.State, dirs.Run) {
		t.Errorf("directories %+v", dirs)
	}
	if _, err := up(t, s, options(lab.Options{Link: "veth"})).AddPod("another"); err == nil {
		t.Error("a lab with pods gets another")
	}
}
