// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"mustang/internal/testkit"
)

// What happens on other nodes: for elsewhereTime each, status updates without a change of the network, and pods that
// are replaced.
const (
	elsewhereTime  = 20 * time.Second
	statusRate     = 20
	replaceRate    = 10
	elsewherePods  = 50_000
	elsewhereRests = 10 * time.Second // after these, memory for lists is free again
)

// BenchmarkElsewhere measures what pods on other nodes cost a node's proxy: CPU time, and bytes from the API server.
// A cluster without policies comes first, and then one with policies that also select pods of the node.
func BenchmarkElsewhere(b *testing.B) {
	c := startCluster(b)
	c.fill(b, map[string]int{"nodes": nodes, "pods": elsewherePods, "services": 2 * probeStep})
	all := []proxy{mustang(b, c), kubeProxy(b, c)}
	for _, with := range []string{"no-policy", "policies"} {
		if with == "policies" {
			c.fill(b, map[string]int{"policies": policies})
		}
		for _, p := range all {
			c.elsewhere(b, p, p.name+"-"+with)
		}
	}
}

func (c *cluster) elsewhere(b *testing.B, p proxy, name string) {
	b.Helper()
	running := p.start(b, 0)
	defer running.stop()
	testkit.Eventually(b, 5*time.Minute, func() error {
		testkit.Succeed(b, running.check())
		_, err := p.node.ask(clusterIP(0), 100*time.Millisecond)
		return err
	})
	for last := -1.0; ; { // until the lists are read
		now := p.node.received(b)
		if now-last < 10e3 {
			break
		}
		last = now
		time.Sleep(elsewhereRests)
	}
	resident, own, err := memory(running.cmd.Process.Pid)
	testkit.Succeed(b, err)
	b.Logf("%s: resident %.0f MB, own %.0f MB", name, resident/1e6, own/1e6)
	for _, phase := range []struct {
		name string
		rate int
		do   func(ctx context.Context, i int) error
	}{{"idle", 1, func(context.Context, int) error { return nil }},
		{"status", statusRate, c.updateStatus}, {"replaced", replaceRate, c.replacePod}} {
		cpu, received := cpuTime(b, running.cmd.Process.Pid), p.node.received(b)
		done := 0
		ticker := time.NewTicker(time.Second / time.Duration(phase.rate))
		for begun := time.Now(); time.Since(begun) < elsewhereTime; done++ {
			testkit.Succeed(b, phase.do(b.Context(), podsHere+31*done%(elsewherePods-podsHere)))
			<-ticker.C
		}
		ticker.Stop()
		time.Sleep(time.Second)
		cpu, received = cpuTime(b, running.cmd.Process.Pid)-cpu, p.node.received(b)-received
		b.Logf("%s: %s: %.2f %% of a CPU, %.3f ms and %.2f kB for each of %d", name, phase.name,
			100*cpu.Seconds()/elsewhereTime.Seconds(), cpu.Seconds()*1e3/float64(done), received/1e3/float64(done), done)
		b.ReportMetric(cpu.Seconds()*1e3/float64(done), name+"-"+phase.name+"-ms")
		b.ReportMetric(received/1e3/float64(done), name+"-"+phase.name+"-kB")
	}
}

// updateStatus changes the time of a condition, as a kubelet's probe does.
func (c *cluster) updateStatus(ctx context.Context, i int) error {
	pod, err := c.client.CoreV1().Pods(namespace).Get(ctx, podName(i), metav1.GetOptions{})
	if err != nil {
		return err
	}
	pod.Status.Conditions[0].LastProbeTime = metav1.Now()
	_, err = c.client.CoreV1().Pods(namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	return err
}

func (c *cluster) replacePod(ctx context.Context, i int) error {
	grace := int64(0)
	err := c.client.CoreV1().Pods(namespace).Delete(ctx, podName(i), metav1.DeleteOptions{GracePeriodSeconds: &grace})
	if err != nil {
		return err
	}
	return c.createPod(ctx, i)
}

// cpuTime returns the CPU time of a process so far.
func cpuTime(b *testing.B, pid int) time.Duration {
	b.Helper()
	data := testkit.Must(os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)))(b)
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')'):])) // from the state on
	user := testkit.Must(strconv.ParseInt(fields[12], 10, 64))(b)
	system := testkit.Must(strconv.ParseInt(fields[13], 10, 64))(b)
	return time.Duration(user+system) * 10 * time.Millisecond
}

// received returns the bytes that the node has received from the segment.
func (n *node) received(b *testing.B) (bytes float64) {
	b.Helper()
	testkit.Succeed(b, n.host.Do(func() error {
		data, err := os.ReadFile("/proc/thread-self/net/dev")
		if err != nil {
			return err
		}
		_, row, _ := strings.Cut(string(data), "eth0:")
		bytes, err = strconv.ParseFloat(strings.Fields(row)[0], 64)
		return err
	}))
	return bytes
}

// detailed gives a pod what a usual one has beside its network.
func detailed(pod *corev1.Pod) {
	for i := range 2 {
		c := corev1.Container{Name: fmt.Sprint("c", i), Image: "registry.example.org/team/application:v1.2.3",
			Ports: []corev1.ContainerPort{{Name: fmt.Sprint("http", i), ContainerPort: int32(8080 + i)}}}
		for j := range 8 {
			c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprint("SETTING_", j), Value: "a value of some length"})
		}
		pod.Spec.Containers = append(pod.Spec.Containers, c)
	}
}

func conditions() (all []corev1.PodCondition) {
	for _, t := range []corev1.PodConditionType{"PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady",
		"PodScheduled"} {
		all = append(all, corev1.PodCondition{Type: t, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()})
	}
	return all
}
