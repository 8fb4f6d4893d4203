// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"strconv"

	"golang.org/x/sys/unix"

	"mustang/internal/nl"
)

// PauseName is the hidden subcommand that runs [Pause].
const PauseName = "lab-pause"

// Pause waits until ctx ends, or the process is told to. It is the life of the
// first process in a container of a lab.
func Pause(ctx context.Context) {
	ctx, stop := signal.NotifyContext(ctx, unix.SIGTERM)
	defer stop()
	<-ctx.Done()
}

// addContainers makes the containers, in the order that gives them their
// addresses.
func (l *Lab) addContainers(ctx context.Context, e *engine) (err error) {
	program := l.store.Program
	if program == "" {
		if program, err = os.Executable(); err != nil {
			return fmt.Errorf("find this program: %w", err)
		}
	}
	if err := e.api.importImage(ctx, program); err != nil {
		return err
	}
	for _, place := range []string{ContainerA, ContainerB, ContainerHost} {
		if err := l.addContainer(ctx, e, place); err != nil {
			return fmt.Errorf("%s: %w", place, err)
		}
	}
	return nil
}

// addContainer starts a container and makes its network namespace a place.
func (l *Lab) addContainer(ctx context.Context, e *engine, place string) error {
	if err := e.api.call(ctx, "POST /containers/create?name="+place, containerConfig(place), nil); err != nil {
		return err
	}
	if err := e.api.call(ctx, "POST /containers/"+place+"/start", nil, nil); err != nil {
		return err
	}
	var found struct {
		State           struct{ Pid int }
		NetworkSettings struct{ IPAddress string }
	}
	if err := e.api.call(ctx, "GET /containers/"+place+"/json", nil, &found); err != nil {
		return err
	}
	if found.State.Pid == 0 {
		return fmt.Errorf("its first process ended: %s", e.lastWords())
	}
	if place == ContainerHost {
		host, err := nl.OpenNamespace(l.namespaces[HostA].Path())
		if err != nil {
			return err
		}
		l.namespaces[place] = host
		return nil
	}
	ns, err := nl.NameNamespace(fmt.Sprintf("/proc/%d/ns/net", found.State.Pid), namespaceName(l.Options.Name, place))
	if err != nil {
		return err
	}
	l.namespaces[place], l.devices[place] = ns, IfName
	want := dockerAddresses(place)[0]
	if got, err := netip.ParseAddr(found.NetworkSettings.IPAddress); err != nil || got != want {
		return fmt.Errorf("dockerd gave it the address %q, not %s", found.NetworkSettings.IPAddress, want)
	}
	return nil
}

// Parts of the API's requests.
type (
	object  = map[string]any
	binding struct{ HostPort string }
)

// containerConfig is what the API wants to know to make a container. Its system
// calls go through no filter, no file of /proc is hidden from it, and it may do
// what an agent does outside, so that only its network stands between the figures.
func containerConfig(place string) object {
	host := object{
		"SecurityOpt": []string{"seccomp=unconfined"}, "MaskedPaths": []string{}, "ReadonlyPaths": []string{},
		"CapAdd": []string{"NET_ADMIN", "SYS_NICE"}, "LogConfig": object{"Type": "none"},
	}
	config := object{"Image": dockerImage, "Cmd": []string{dockerProgram, PauseName}, "HostConfig": host}
	switch place {
	case ContainerA:
		exposed, bindings := object{}, map[string][]binding{}
		for _, protocol := range []string{"tcp", "udp"} {
			port := fmt.Sprintf("%d/%s", ServicePort, protocol)
			exposed[port] = object{}
			bindings[port] = []binding{{strconv.Itoa(PublishedPort)}}
		}
		config["ExposedPorts"], host["PortBindings"] = exposed, bindings
	case ContainerHost:
		host["NetworkMode"] = "host"
	}
	return config
}

// HostDevice is the name of the host's end of a container's link, which is a port
// of Docker's bridge. It is empty for places that have none.
func (l *Lab) HostDevice(place string) (string, error) {
	if l.docker == nil || l.devices[place] == "" {
		return "", nil
	}
	inside, err := l.namespaces[place].Device(l.devices[place])
	if err != nil {
		return "", err
	}
	outside, err := l.namespaces[HostA].Devices()
	if err != nil {
		return "", err
	}
	for _, device := range outside {
		if device.Index == inside.PeerIndex {
			return device.Name, nil
		}
	}
	return "", fmt.Errorf("lab %s: the other end of %s's %s is not in %s", l.Options.Name, place, inside.Name, HostA)
}
