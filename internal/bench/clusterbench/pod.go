// SPDX-License-Identifier: Apache-2.0

package clusterbench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"mustang/internal/bench/host"
)

// PodCommand is the hidden subcommand of mustang that runs in pods. Its main calls [Main].
const PodCommand = "cluster-pod"

const (
	idleTime  = 5 * time.Minute  // how long a pod goes on without another process in it: its bench has ended
	idleLook  = 10 * time.Second // the pause between looks for one
	reachTime = 30 * time.Second // the time that cluster IPs have to answer
)

// Main runs in pods, by its first argument. "idle" is the process of the container: it ends after idleTime without
// another process in the pod, and accepts connections at the address that may follow. "reach" waits until all
// addresses that follow accept connections. "describe" prints a description of the node.
func Main(ctx context.Context, args []string, stdout io.Writer) error {
	switch {
	case len(args) == 1 && args[0] == "describe":
		d, err := host.Describe()
		if err != nil {
			return err
		}
		return json.NewEncoder(stdout).Encode(d)
	case len(args) > 1 && args[0] == "reach":
		return reachAll(ctx, args[1:])
	case len(args) > 0 && args[0] == "idle":
		return idle(ctx, args[1:])
	}
	return errors.New("want idle, reach or describe")
}

func idle(ctx context.Context, listen []string) error {
	for _, address := range listen {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		if err != nil {
			return err
		}
		defer l.Close()
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				_ = conn.Close()
			}
		}()
	}
	for last := time.Now(); time.Since(last) < idleTime; {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(idleLook):
		}
		if processes, err := filepath.Glob("/proc/[0-9]*"); err != nil || len(processes) > 1 {
			last = time.Now()
		}
	}
	return nil
}

func reachAll(ctx context.Context, addresses []string) error {
	dialer := net.Dialer{Timeout: time.Second}
	for _, address := range addresses {
		var conn net.Conn
		var err error
		if wait.PollUntilContextTimeout(ctx, poll, reachTime, true, func(ctx context.Context) (bool, error) {
			conn, err = dialer.DialContext(ctx, "tcp", address)
			return err == nil, nil
		}) != nil {
			return fmt.Errorf("cluster IP does not answer after %v: %w", reachTime, err)
		}
		_ = conn.Close()
	}
	return nil
}
