// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"mustang/internal/qdisc"
	"mustang/internal/testkit"
)

// criClient calls containerd over CRI, as kubelet does.
type criClient struct {
	m        *machine
	runtimes cri.RuntimeServiceClient
	images   cri.ImageServiceClient
}

// newCRI returns a client of the machine's containerd and waits until its network is ready.
func newCRI(t testing.TB, m *machine) *criClient {
	t.Helper()
	conn := testkit.Must(grpc.NewClient("unix://"+m.path(containerdSocket),
		grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	t.Cleanup(func() { _ = conn.Close() })
	c := &criClient{m, cri.NewRuntimeServiceClient(conn), cri.NewImageServiceClient(conn)}
	testkit.Eventually(t, containerdTimeout, func() error {
		image, err := c.images.ImageStatus(t.Context(), &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: imageName}})
		if err != nil {
			return err
		}
		if image.Image == nil {
			return fmt.Errorf("CRI does not know %s", imageName)
		}
		status, err := c.runtimes.Status(t.Context(), &cri.StatusRequest{})
		if err != nil {
			return err
		}
		for _, condition := range status.Status.Conditions {
			if !condition.Status {
				return fmt.Errorf("%s: %s: %s", condition.Type, condition.Reason, condition.Message)
			}
		}
		return nil
	})
	return c
}

func (c *criClient) sandbox(name string, ports ...*cri.PortMapping) *cri.PodSandboxConfig {
	return &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: name, Uid: name, Namespace: "default"},
		Linux:    &cri.LinuxPodSandboxConfig{CgroupParent: "/" + c.m.cgroup()}, PortMappings: ports,
	}
}

// runPod runs a pod with one container, and checks that CRI reports the pod's addresses.
// It returns the IDs and the pod's network.
func (c *criClient) runPod(t testing.TB, config *cri.PodSandboxConfig) (criPod, pod) {
	t.Helper()
	ran := testkit.Must(c.runtimes.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: config}))(t)
	id := ran.PodSandboxId
	pid, addrs := c.podStatus(t, id)
	p := c.m.podOf(t, pid)
	testkit.Check(t, slices.Equal(addrs, p.addrs), "CRI says that the pod has %v, it has %v", addrs, p.addrs)
	created := testkit.Must(c.runtimes.CreateContainer(t.Context(), &cri.CreateContainerRequest{
		PodSandboxId: id, SandboxConfig: config,
		Config: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: "container"}, Image: &cri.ImageSpec{Image: imageName},
			Linux: &cri.LinuxContainerConfig{},
		},
	}))(t)
	testkit.Must(c.runtimes.StartContainer(t.Context(), &cri.StartContainerRequest{ContainerId: created.ContainerId}))(t)
	return criPod{id, created.ContainerId}, p
}

// criPod holds the IDs of a pod and of its container.
type criPod struct{ sandbox, container string }

func (c *criClient) checkServices(t testing.TB, from criPod, services ...netip.AddrPort) {
	t.Helper()
	request := &cri.ExecSyncRequest{ContainerId: from.container, Cmd: []string{imageProgram},
		Timeout: int64(runTimeout.Seconds())}
	for _, service := range services {
		request.Cmd = append(request.Cmd, service.String())
	}
	ended := testkit.Must(c.runtimes.ExecSync(t.Context(), request))(t)
	testkit.Check(t, ended.ExitCode == 0, "from a container: %s", ended.Stderr)
}

// podStatus returns the process ID of a pod and its sorted addresses.
func (c *criClient) podStatus(t testing.TB, id string) (int, []netip.Addr) {
	t.Helper()
	status, err := c.runtimes.PodSandboxStatus(t.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: id, Verbose: true})
	testkit.Succeed(t, err)
	var info struct{ PID int }
	testkit.Succeed(t, json.Unmarshal([]byte(status.Info["info"]), &info))
	texts := []string{status.Status.Network.Ip}
	for _, ip := range status.Status.Network.AdditionalIps {
		texts = append(texts, ip.Ip)
	}
	var addrs []netip.Addr
	for _, text := range texts {
		addrs = append(addrs, testkit.Must(netip.ParseAddr(text))(t))
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return info.PID, addrs
}

func (c *criClient) removePod(ctx context.Context, p criPod) error {
	if _, err := c.runtimes.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: p.sandbox}); err != nil {
		return err
	}
	_, err := c.runtimes.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: p.sandbox})
	return err
}

// TestCRI runs pods over CRI, as Kubernetes does.
func TestCRI(t *testing.T) {
	eachPlugin(t, func(t *testing.T, m *machine) {
		m.startContainerd(t, criNamespace)
		c := newCRI(t, m)
		var ports []*cri.PortMapping
		if m.plugin.ports {
			for _, protocol := range []cri.Protocol{cri.Protocol_TCP, cri.Protocol_UDP} {
				ports = append(ports, &cri.PortMapping{Protocol: protocol, ContainerPort: podPort, HostPort: hostPort})
			}
		}
		idA, a := c.runPod(t, c.sandbox("a", ports...))
		configB := c.sandbox("b")
		if m.plugin.bandwidth {
			configB.Annotations = map[string]string{"kubernetes.io/ingress-bandwidth": "90M",
				"kubernetes.io/egress-bandwidth": "1M"}
		}
		idB, b := c.runPod(t, configB)
		if m.plugin.bandwidth {
			// containerd's burst exceeds what the kernel can enforce at this rate.
			says, err := qdisc.Deviation(b.ns, "eth0", qdisc.Limit{Rate: 1e6, Burst: math.MaxUint32})
			testkit.Check(t, err == nil && says == "", "bandwidth: eth0 %s, %v", says, err)
		}
		checkLeases(t, m, slices.Concat(a.addrs, b.addrs)...)
		checkPods(t, m, a, b)
		if ports != nil {
			checkPorts(t, m, a)
		}
		if m.plugin.services {
			m.giveMustang(t)
			services := m.serve(t, 1, a)
			c.checkServices(t, idA, services...)
			c.checkServices(t, idB, services...)
		}
		testkit.Succeed(t, c.removePod(t.Context(), idA))
		checkLeases(t, m, b.addrs...)
		testkit.Succeed(t, c.removePod(t.Context(), idB))
	}, containerdPrograms...)
}
