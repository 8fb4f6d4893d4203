// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
)

// Places of topology docker, in addition to the two hosts.
const (
	// ContainerA is on Docker's bridge. host-a publishes its [ServicePort] as [PublishedPort].
	ContainerA = "container-a"
	// ContainerB is on the same bridge.
	ContainerB = "container-b"
	// ContainerHost is in the network namespace of host-a.
	ContainerHost = "container-host"
)

var containers = []string{ContainerA, ContainerB, ContainerHost}

const dockerLink = "bridge"

// PublishedPort is the port of host-a that leads to container-a's [ServicePort], for TCP and UDP on all addresses.
const PublishedPort = 6201

const dockerBridge = "172.17.0.1/16" // the address of Docker's bridge with the range of its containers

// containerAddresses are the addresses that Docker assigns, in the order in which the containers are started.
var containerAddresses = map[string]netip.Addr{
	ContainerA: netip.MustParseAddr("172.17.0.2"),
	ContainerB: netip.MustParseAddr("172.17.0.3"),
}

func buildDocker(ctx context.Context, l *Lab) (err error) {
	if err := buildTwoHosts(ctx, l); err != nil {
		return err
	}
	if err := l.startDocker(ctx); err != nil {
		return err
	}
	for _, place := range containers {
		if err := l.addContainer(ctx, place); err != nil {
			return fmt.Errorf("%s: %w", place, err)
		}
	}
	return nil
}

func (l *Lab) startDocker(ctx context.Context) (err error) {
	// dockerd would load br_netfilter, and with that affect bridges outside of the lab.
	if _, err := rtnl.In(l.namespaces[HostA]).Sysctl("net/bridge/bridge-nf-call-iptables"); err != nil {
		return UnsupportedError{
			Mode: dockerLink, Feature: "netfilter call for Docker's bridge", Module: "br_netfilter", Since: "3.18",
		}.Here()
	}
	if err := l.startEngine(ctx); err != nil {
		return err
	}
	program := l.store.Program
	if program == "" {
		if program, err = os.Executable(); err != nil {
			return fmt.Errorf("find the running program: %w", err)
		}
	}
	if err := l.docker.importImage(ctx, program); err != nil {
		return fmt.Errorf("image: %w", err)
	}
	return nil
}

// addContainer starts a container whose first process is [Pause], and adds its network namespace as a place. The
// container runs without seccomp filter and without hidden files in /proc, and with the capabilities that an agent
// uses outside. Only its network differs from the host's.
func (l *Lab) addContainer(ctx context.Context, place string) error {
	args := []string{
		"run", "--detach", "--pull=never", "--name=" + place, "--log-driver=none",
		"--security-opt=seccomp=unconfined", "--security-opt=systempaths=unconfined", "--cap-add=NET_ADMIN",
		"--cap-add=SYS_NICE",
	}
	switch place {
	case ContainerHost:
		args = append(args, "--network=host")
	case ContainerA:
		for _, protocol := range []string{"tcp", "udp"} {
			args = append(args, fmt.Sprintf("--publish=%d:%d/%s", PublishedPort, ServicePort, protocol))
		}
	}
	if _, err := l.docker.run(ctx, nil, append(args, image, imageProgram, PauseCommand)...); err != nil {
		return err
	}
	const format = "{{.State.Pid}} {{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
	found, err := l.docker.run(ctx, nil, "inspect", "--format="+format, place)
	if err != nil {
		return err
	}
	pid, address, _ := strings.Cut(found, " ")
	switch want := containerAddresses[place]; {
	case pid == "0" || pid == "":
		return fmt.Errorf("its first process ended: %s", l.docker.logTail())
	case place == ContainerHost:
		l.namespaces[place], err = netns.Open(l.namespaces[HostA].Path())
		return err
	case address != want.String():
		return fmt.Errorf("dockerd assigned the address %s, not %s", address, want)
	}
	ns, err := netns.Bind("/proc/"+pid+"/ns/net", namespaceName(l.Options.Name, place))
	if err != nil {
		return err
	}
	l.namespaces[place], l.pods[place] = ns, attached{device: IfName}
	return nil
}

// HostDevice returns the host's device of a container, a port of Docker's bridge; empty for places without one.
func (l *Lab) HostDevice(place string) (string, error) {
	if l.docker == nil || l.pods[place].device == "" {
		return "", nil
	}
	inside, err := rtnl.In(l.namespaces[place]).Device(l.pods[place].device)
	if err != nil {
		return "", err
	}
	outside, err := rtnl.In(l.namespaces[HostA]).DeviceByIndex(inside.PeerIndex)
	if err != nil {
		return "", fmt.Errorf("lab %s: peer of %s's %s: %w", l.Options.Name, place, inside.Name, err)
	}
	return outside.Name, nil
}
