// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"mustang/internal/nl"
	"mustang/internal/tun"
)

// RelayName is the hidden subcommand that runs [Relay].
const RelayName = "lab-relay"

// relayReady is what a relay prints when it carries packets.
const relayReady = "ready"

// Relay carries packets between two TUN or TAP devices until ctx ends or a
// device goes. It is the life of the process that a lab starts for each pod in
// link modes that need one. Its arguments are flags and the devices, each as
// NAMESPACE:DEVICE, where the namespace is a path.
func Relay(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet(RelayName, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	tap := flags.Bool("tap", false, "the devices are TAP, not TUN")
	offload := flags.Bool("offload", false, "carry batches of segments (GSO)")
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	if flags.NArg() != 2 {
		return fmt.Errorf("relay: want 2 devices, not %d", flags.NArg())
	}
	o := tun.Options{Offload: *offload}
	if *tap {
		o.Kind = tun.TAP
	}
	var ends [2]*tun.Device
	for i, arg := range flags.Args() {
		end, err := openEnd(arg, o)
		if err != nil {
			return fmt.Errorf("relay: %w", err)
		}
		defer end.Close()
		ends[i] = end
	}
	if _, err := fmt.Fprintln(stdout, relayReady); err != nil {
		return fmt.Errorf("relay: say ready: %w", err)
	}
	return tun.Switch(ctx, ends[0], ends[1])
}

func openEnd(arg string, o tun.Options) (*tun.Device, error) {
	path, name, ok := strings.Cut(arg, ":")
	if !ok {
		return nil, fmt.Errorf("device %q: want NAMESPACE:DEVICE", arg)
	}
	ns, err := nl.OpenNamespace(path)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	o.Name = name
	return tun.Open(ns, o)
}

// startRelay starts the relay of a pod and waits until it carries packets. It
// runs until the lab is taken down, also when this process ends before.
func (l *Lab) startRelay(host *nl.Namespace, pod string, tap bool) error {
	inside := l.namespaces[pod]
	args := []string{RelayName}
	if tap {
		args = append(args, "-tap")
	}
	if l.Options.Offload {
		args = append(args, "-offload")
	}
	args = append(args, host.Path()+":"+HostIfName(pod), inside.Path()+":"+IfName)
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("start relay: %w", err)
	}
	var stderr strings.Builder
	cmd := exec.Command(exe, args...)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("start relay: %w", err)
	}
	errs, err := cmd.StderrPipe()
	if err != nil {
		return fmt.Errorf("start relay: %w", err)
	}
	if err := host.Start(cmd); err != nil {
		return fmt.Errorf("start relay: %w", err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err == nil && strings.TrimSpace(line) == relayReady {
		l.children = append(l.children, cmd)
		return nil
	}
	_ = cmd.Process.Kill()
	_, _ = io.Copy(&stderr, errs)
	return errors.Join(fmt.Errorf("relay of %s: %s", pod, strings.TrimSpace(stderr.String())), ignoreExit(cmd.Wait()))
}

// ignoreExit is nil for a process that ended in whatever way.
func ignoreExit(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil
	}
	return err
}
