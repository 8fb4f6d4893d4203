// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"mustang/internal/datapath/objects"
	"mustang/internal/testkit"
)

const workerVariable = "MUSTANG_DATAPATH_WORKER"

// TestProcesses opens one new root from several processes at once, and lets each add to it.
func TestProcesses(t *testing.T) {
	testkit.RequireRoot(t)
	testkit.RequireKernel(t, 6, 6)
	root := testkit.BPFFS(t) + "/root"
	const workers = 3
	commands := make([]*exec.Cmd, workers)
	for i := range commands {
		commands[i] = exec.Command("/proc/self/exe")
		commands[i].Env = append(os.Environ(), childVariable+"="+root, workerVariable+"="+strconv.Itoa(i))
		commands[i].Stderr = os.Stderr
		if err := commands[i].Start(); err != nil {
			t.Fatal(err)
		}
	}
	for i, c := range commands {
		if err := c.Wait(); err != nil {
			t.Errorf("process %d: %v", i, err)
		}
	}
	wantWorkers(t, openSized(t, Options{Root: root}), workers)
}

// child is one of the processes.
func child(root string) int {
	worker, err := strconv.Atoi(os.Getenv(workerVariable))
	var d *Datapath
	if err == nil {
		d, err = Open(context.Background(), Options{Root: root, Sizes: objects.Sizes{Connections: 64}})
	}
	if err == nil {
		err = errors.Join(addServices(d, worker), d.Close())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
