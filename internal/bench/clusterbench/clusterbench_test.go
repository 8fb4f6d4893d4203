// SPDX-License-Identifier: Apache-2.0

package clusterbench

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"mustang/internal/advise"
	"mustang/internal/bench/suites"
	"mustang/internal/kube"
	"mustang/internal/kube/kubetest"
	"mustang/internal/result"
	"mustang/internal/testkit"
)

// Paths of lists.
const (
	spacesPath   = "/api/v1/namespaces"
	nodesPath    = "/api/v1/nodes"
	podsPath     = "/api/v1/pods"
	eventsPath   = "/api/v1/events"
	servicesPath = "/api/v1/services"
	jobsPath     = "/apis/batch/v1/jobs"
)

// fake is a cluster whose pods run at once.
type fake struct {
	*kubetest.Server
	mu      sync.Mutex
	jobs    []batchv1.Job
	execs   []string
	notes   []string
	status  string          // the status of pods; "%s" stands for their addresses
	refused string          // why pods in the network of a node are not made
	family  corev1.IPFamily // the family of the last Service, and ports are its ports
	ports   []corev1.ServicePort
}

// ready is the status of a pod that runs.
const ready = `{"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], "podIPs": [%s]}`

func startFake(t *testing.T, nodes ...string) *fake {
	t.Helper()
	f := &fake{Server: kubetest.Start(t), status: ready}
	for _, name := range nodes {
		f.Put(t, nodesPath, node1(name, ""))
	}
	f.Created(func(list string, o map[string]any) {
		f.mu.Lock()
		defer f.mu.Unlock()
		switch list {
		case jobsPath:
			job, err := decode[batchv1.Job](o)
			testkit.Check(t, err == nil, "%v", err)
			f.jobs = append(f.jobs, job)
			if f.refused != "" && job.Spec.Template.Spec.HostNetwork {
				f.Put(t, eventsPath,
					fmt.Sprintf(`{"kind": "Event", "apiVersion": "v1", "metadata": {"namespace": %q, "name": "e-%s"}, "type": `+
						`"Warning",
					"reason": "FailedCreate", "message": %q, "involvedObject": {"kind": "Job", "name": %[2]q}}`,
						job.Namespace, job.Name, f.refused))
				return
			}
			n := len(f.jobs)
			addresses := fmt.Sprintf(`{"ip": "10.0.0.%d"}, {"ip": "fd00::%d"}`, n, n)
			f.Put(t, podsPath, fmt.Sprintf(
				`{"kind": "Pod", "apiVersion": "v1", "metadata": {"namespace": %q, "name": "%s-x", "labels": {%q: %q}}, `+
					`"status": %s}`,
				job.Namespace, job.Name, named, job.Name, strings.ReplaceAll(f.status, "%s", addresses)))
		case servicesPath:
			service, err := decode[corev1.Service](o)
			testkit.Check(t, err == nil, "%v", err)
			f.family, f.ports = service.Spec.IPFamilies[0], service.Spec.Ports
			o["spec"].(map[string]any)["clusterIP"] = map[corev1.IPFamily]string{corev1.IPv4Protocol: "10.96.0.7",
				corev1.IPv6Protocol: "fd96::7"}[f.family]
		}
	})
	f.Exec(func(pod string, command []string, stdout io.Writer) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.execs = append(f.execs, pod+": "+strings.Join(command, " "))
		if command[len(command)-1] == "describe" {
			return Main(t.Context(), command[2:], stdout)
		}
		return nil
	})
	return f
}

func decode[T any](o map[string]any) (t T, err error) {
	err = runtime.DefaultUnstructuredConverter.FromUnstructured(o, &t)
	return t, err
}

func node1(name, more string) string {
	return fmt.Sprintf(`{"kind": "Node", "apiVersion": "v1", "metadata": {"name": %q}, "status": {"conditions": `+
		`[{"type": "Ready", "status": "True"}],
		"capacity": {"cpu": "2"}, "nodeInfo": {"kubeletVersion": "v1.34.4", "containerRuntimeVersion": "containerd://2.0", "operatingSystem": "linux"}}%s}`, name, more)
}

func (f *fake) up(t *testing.T, change func(*Options)) (*Cluster, error) {
	t.Helper()
	o := Options{
		Access: Access{Kubeconfig: f.Kubeconfig(t)}, Image: "mustang:test", Longest: time.Hour,
		Note: func(text string) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.notes = append(f.notes, text)
		},
	}
	if change != nil {
		change(&o)
	}
	return Up(t.Context(), o)
}

func (f *fake) left(t *testing.T) string {
	t.Helper()
	all := ""
	for _, list := range []string{spacesPath, jobsPath, servicesPath} {
		if text := f.Objects(list); text != "null" {
			all += text
		}
	}
	return all
}

// TestPodsAreMadeAndRemoved makes the pods of a cluster of two nodes.
func TestPodsAreMadeAndRemoved(t *testing.T) {
	f := startFake(t, "b", "a")
	c, err := f.up(t, nil)
	testkit.Succeed(t, err)
	var got []string
	for _, job := range f.jobs {
		spec := job.Spec.Template.Spec
		node := spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
		on := node.NodeSelectorTerms[0].MatchFields[0].Values[0]
		got = append(got, fmt.Sprintf("%s on %s, host %t", job.Name, on, spec.HostNetwork))
		container := spec.Containers[0]
		if !*spec.SecurityContext.RunAsNonRoot || *container.SecurityContext.AllowPrivilegeEscalation ||
			container.Image != "mustang:test" ||
			*job.Spec.ActiveDeadlineSeconds != 3600 || *job.Spec.BackoffLimit != 0 || len(container.Resources.Limits) > 0 ||
			len(spec.Tolerations) > 0 {
			t.Errorf("job %+v", job.Spec)
		}
	}
	want := []string{
		"client on a, host false", "host-client on a, host true", "server-same-node on a, host false",
		"host-server-same-node on a, host true",
		"server-two-nodes on b, host false", "host-server-two-nodes on b, host true",
	}
	testkit.Check(t, slices.Equal(got, want), "jobs %v, want %v", got, want)
	if want := "client-x: " + Program + " cluster-pod reach 10.96.0.7:5202 10.96.0.7:5202"; f.execs[0] != want {
		t.Errorf("first command %q, want %q", f.execs[0], want)
	}
	for _, p := range c.Suite().Paths {
		testkit.Check(t, p.Connect.IsValid() && p.Listen.IsValid() && p.Skip == "" && !p.Connect.Addr().Is6(), "path %+v", p)
	}
	checkPorts(t, c.Suite().Paths, f.ports)
	head := result.Run{Versions: map[string]string{}}
	c.Describe(&head)
	if want := []string{
		"Both nodes: 2 CPUs, containerd://2.0, kubelet v1.34.4. No DaemonSets; no kube-proxy."}; !slices.Equal(head.Notes,
		want) {
		t.Errorf("notes %q, want %q", head.Notes, want)
	}
	agent := c.Agent(client)
	testkit.Check(t, slices.Contains(agent.Shell, "client-x") && agent.Exe == Program, "agent %+v", agent)
	testkit.Succeed(t, c.Close())
	left := f.left(t)
	testkit.Check(t, left == "", "left %s", left)
}

// checkPorts checks that paths by cluster IP use ports of the Service, and all others none of them.
func checkPorts(t *testing.T, paths []suites.Path, ports []corev1.ServicePort) {
	t.Helper()
	for _, p := range paths {
		front, back := false, false
		for _, port := range ports {
			front = front || port.Port == int32(p.Connect.Port())
			back = back || port.TargetPort.IntValue() == int(p.Listen.Port())
		}
		if service := p.Target == result.TargetClusterIP; front != service || back != service {
			t.Errorf("path %s from %s to %s, the service has %v", p.ID, p.Connect, p.Listen, ports)
		}
	}
}

// paths returns the paths of a bench that was made and removed.
func (f *fake) paths(t *testing.T, change func(*Options)) []suites.Path {
	t.Helper()
	c, err := f.up(t, change)
	testkit.Succeed(t, err)
	testkit.Succeed(t, c.Close())
	return c.Suite().Paths
}

// TestIPv6Addresses takes the IPv6 addresses of a dual-stack cluster.
func TestIPv6Addresses(t *testing.T) {
	for _, p := range startFake(t, "a", "b").paths(t, func(o *Options) { o.IPv6 = true }) {
		testkit.Check(t, p.Connect.Addr().Is6() && p.Listen.Addr().Is6(), "path %s from %s to %s", p.ID, p.Connect, p.Listen)
	}
}

// TestOneNodeSkipsPathsAcross has one node, and the paths across two a reason.
func TestOneNodeSkipsPathsAcross(t *testing.T) {
	f := startFake(t, "a")
	f.Put(t, nodesPath, node1("b",
		`, "spec": {"taints": [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]}`))
	for _, p := range f.paths(t, nil) {
		across := strings.Contains(p.ID, "two-nodes")
		testkit.Check(t, across == (p.Skip != ""), "path %s: skipped for %q", p.ID, p.Skip)
	}
}

// TestHostPodsRefused skips the paths between hosts where policies of the cluster forbid their pods.
func TestHostPodsRefused(t *testing.T) {
	f := startFake(t, "a", "b")
	f.refused = "host network is forbidden"
	for _, p := range f.paths(t, nil) {
		if host := strings.HasPrefix(p.ID, "host/"); host != strings.Contains(p.Skip, f.refused) || !host &&
			!p.Connect.IsValid() {
			t.Errorf("path %s to %s: skipped for %q", p.ID, p.Connect, p.Skip)
		}
	}
}

// TestPodOfLabs has a privileged pod for labs, which runs Mustang's commands; or the reason why the cluster refuses it.
func TestPodOfLabs(t *testing.T) {
	f := startFake(t, "a")
	c, err := f.up(t, func(o *Options) { o.LabAfter = 7 * time.Minute })
	testkit.Succeed(t, err)
	for _, job := range f.jobs {
		c, waits := job.Spec.Template.Spec.Containers[0], map[bool]string{true: "12m0s", false: "5m0s"}
		is := c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged
		if is != (job.Name == labs) || is && job.Spec.Template.Spec.HostNetwork || !slices.Contains(c.Command, waits[is]) {
			t.Errorf("job %s is privileged: %t, command %q", job.Name, is, c.Command)
		}
	}
	testkit.Succeed(t, c.RunLab(t.Context(), io.Discard, io.Discard, "a", "b"))
	if want := labs + "-x: " + Program + " a b"; !slices.Contains(f.execs, want) {
		t.Errorf("commands %q, want %q", f.execs, want)
	}
	c.labless = "refused"
	err = c.RunLab(t.Context(), io.Discard, io.Discard, "a")
	testkit.Check(t, err != nil && err.Error() == "refused", "error %v of a refused pod", err)
	testkit.Succeed(t, c.Close())
}

// TestReaderReadsLists reads all objects of a kind, and one.
func TestReaderReadsLists(t *testing.T) {
	f := startFake(t, "a", "b")
	read, err := (Access{Kubeconfig: f.Kubeconfig(t)}).Reader()
	testkit.Succeed(t, err)
	kind := advise.Kind{GroupVersionResource: nodes}
	var names []string
	name := func(o advise.Object) { names = append(names, o.GetName()) }
	testkit.Succeed(t, read(t.Context(), kind, name))
	testkit.Check(t, slices.Equal(names, []string{"a", "b"}), "nodes %q", names)
	kind.Name = "b"
	testkit.Succeed(t, read(t.Context(), kind, name))
	testkit.Check(t, slices.Equal(names, []string{"a", "b", "b"}), "nodes %q", names)
	kind.Name = "c"
	err = read(t.Context(), kind, name)
	testkit.Check(t, apierrors.IsNotFound(err), "error %v for a node that does not exist", err)
}

// TestReasons checks the error of a failed start, and that nothing is left.
func TestReasons(t *testing.T) {
	waits := func(reason string) string {
		return `{"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "` + reason +
			`", "message": "not found"}}}]}`
	}
	for name, c := range map[string]struct {
		status, want string
		change       func(*Options)
		exec         error
	}{
		"image": {status: waits("ImagePullBackOff"), want: "pod client on node a: ImagePullBackOff: not found; make image"},
		"ended": {status: `{"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"exitCode": 127, ` +
			`"message": "no such file"}}}]}`, want: "pod client on node a: ended with exit code 127: no such file"},
		"family": {status: strings.ReplaceAll(ready, "%s", `{"ip": "fd00::1"}`), want: "pod client lacks an IPv4 address"},
		"unknown": {status: ready, change: func(o *Options) { o.Nodes = []string{"a", "c"} },
			want: "node c is not in the cluster"},
		"cordoned": {status: ready, change: func(o *Options) { o.Nodes = []string{"b"} }, want: "node b is cordoned"},
		"service":  {status: ready, exec: errors.New("does not answer"), want: "does not answer"},
	} {
		t.Run(name, func(t *testing.T) {
			f := startFake(t, "a")
			f.Put(t, nodesPath, node1("b", `, "spec": {"unschedulable": true}`))
			f.status = c.status
			if c.exec != nil {
				f.Exec(func(string, []string, io.Writer) error { return c.exec })
			}
			_, err := f.up(t, c.change)
			testkit.Check(t, err != nil && strings.Contains(err.Error(), c.want), "error %v, want %q", err, c.want)
			left := f.left(t)
			testkit.Check(t, left == "", "left %s", left)
		})
	}
}

// TestPendingPodsSayWhy ends a bench that waits for pods.
func TestPendingPodsSayWhy(t *testing.T) {
	for name, c := range map[string]struct{ status, event, want string }{
		"scheduler": {
			`{"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes are ` +
				`available: Insufficient cpu."}]}`, "",
			"pod client on node a: not scheduled: 0/1 nodes are available: Insufficient cpu.",
		},
		"refused": {"", "pods is forbidden: exceeded quota",
			"pod client is not made; job client: FailedCreate: pods is forbidden: exceeded quota"},
	} {
		t.Run(name, func(t *testing.T) {
			f := startFake(t)
			cluster := &Cluster{options: Options{Note: func(string) {}}}
			var err error
			if cluster.api, err = (Access{Kubeconfig: f.Kubeconfig(t)}).connect(); err != nil {
				t.Fatal(err)
			}
			cluster.pods = []*pod{{name: client, node: "a"}}
			var all []corev1.Pod
			if c.status != "" {
				var p corev1.Pod
				if err := json.Unmarshal(fmt.Appendf(nil, `{"metadata": {"labels": {%q: "client"}}, "status": %s}`, named,
					c.status), &p); err != nil {
					t.Fatal(err)
				}
				all = append(all, p)
			}
			if c.event != "" {
				f.Put(t, eventsPath,
					fmt.Sprintf(`{"kind": "Event", "apiVersion": "v1", "metadata": {"namespace": "mustang-bench", "name": "e"}, "type": `+
						`"Warning",
					"reason": "FailedCreate", "message": %q, "involvedObject": {"kind": "Job", "name": "client"}}`, c.event))
			}
			waiting, err := cluster.look(all)
			testkit.Check(t, waiting == c.want && err == nil, "waits for %q (%v), want %q", waiting, err, c.want)
		})
	}
}

// TestSecondRunIsRefused starts a run beside another one, which goes on.
func TestSecondRunIsRefused(t *testing.T) {
	f := startFake(t, "a")
	c, err := f.up(t, nil)
	testkit.Succeed(t, err)
	jobs := len(f.jobs)
	_, err = f.up(t, nil)
	want := "kubectl delete namespace " + namespace
	testkit.Check(t, err != nil && strings.Contains(err.Error(), want), "error %v, want %q", err, want)
	left := f.left(t)
	testkit.Check(t, len(f.jobs) == jobs && strings.Contains(left, `"`+namespace+`"`), "%d jobs, left %s", len(f.jobs),
		left)
	testkit.Succeed(t, c.Close())
}

// TestExecRunsACommand runs one as the process of an agent does.
func TestExecRunsACommand(t *testing.T) {
	f := startFake(t)
	f.Exec(func(pod string, command []string, stdout io.Writer) error {
		fmt.Fprintln(stdout, pod, command)
		if command[0] == "fails" {
			return errors.New("it failed")
		}
		return nil
	})
	args := (Access{Kubeconfig: f.Kubeconfig(t)}).command("mustang", "client-x")[2:]
	var out bytes.Buffer
	err := Exec(t.Context(), append(args, "echo", "a b"), kube.ExecStreams{Stdout: &out})
	testkit.Check(t, err == nil && out.String() == "client-x [echo a b]\n", "output %q, error %v", out.String(), err)
	err = Exec(t.Context(), append(args, "fails"), kube.ExecStreams{Stdout: &out})
	testkit.Check(t, err != nil && strings.Contains(err.Error(), "it failed"), "error %v of a command that fails", err)
}
