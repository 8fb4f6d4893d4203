// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/kube/kubetest"
	"mustang/internal/testkit"
)

// TestAgentUpgrades starts an agent on a node with the maps of the layout before this one: it brings them to its own, and an open connection
// through a service goes on.
func TestAgentUpgrades(t *testing.T) {
	t.Parallel()
	n := newKillNetwork(t)
	testkit.Echo(t, n.pods[0], "tcp", killPodA+":0")
	n.run("ep add --netns=PODA --host-netns=HOST")
	n.run("ep add --netns=PODB --host-netns=HOST")
	n.run("svc add --service=" + killFrontend + " --backend=BACKEND")
	conn, err := testkit.Dial(n.pods[1], "tcp", killFrontend)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	exchange := func() error {
		_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
		if _, err := conn.Write([]byte("open")); err != nil {
			return err
		}
		_, err := conn.Read(make([]byte, 4))
		return err
	}
	if err := exchange(); err != nil {
		t.Fatal(err)
	}
	n.run("svc rm --service=" + killFrontend) // its row has another form in that layout
	if err := os.Rename(filepath.Join(n.root, "v8"), filepath.Join(n.root, "v7")); err != nil {
		t.Fatal(err)
	}
	pin := filepath.Join(n.root, "v7", "maps", "services")
	services, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 20, ValueSize: 52, MaxEntries: 131072, Flags: unix.BPF_F_NO_PREALLOC})
	if err != nil {
		t.Fatal(err)
	}
	defer services.Close()
	if err := errors.Join(os.Remove(pin), services.Pin(pin)); err != nil {
		t.Fatal(err)
	}
	listed := func() int {
		code, _, _ := command(t, map[string]string{cli.EnvBPFRoot: n.root}, "svc", "ls")
		return code
	}
	if code := listed(); code != exitFailed {
		t.Errorf("the layout before is read: exit code %d", code)
	}
	n.agent(kubetest.Start(t).Kubeconfig(t), t.TempDir())
	testkit.Eventually(t, time.Minute, func() error {
		if code := listed(); code != exitDone {
			return fmt.Errorf("exit code %d", code)
		}
		return nil
	})
	if err := exchange(); err != nil {
		t.Error(err)
	}
}
