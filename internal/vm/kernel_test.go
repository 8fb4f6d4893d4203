// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"mustang/internal/lock"
	"mustang/internal/testkit"
)

// repository is a package repository in a directory, which apt uses instead of
// the machine's own until the test is over.
type repository struct{ dir, index string }

func newRepository(t *testing.T) *repository {
	t.Helper()
	testkit.RequireRoot(t)
	testkit.RequireTool(t, "apt-get")
	testkit.RequireTool(t, "dpkg-deb")
	r := &repository{dir: t.TempDir()}
	for _, dir := range []string{"etc/apt/apt.conf.d", "etc/apt/preferences.d", "var/lib/apt/lists/partial",
		"var/cache/apt/archives/partial", "pool"} {
		testkit.Succeed(t, os.MkdirAll(filepath.Join(r.dir, dir), 0o755))
	}
	r.write(t, "etc/apt/sources.list", "deb [trusted=yes] file:"+r.dir+"/pool ./\n")
	r.write(t, "apt.conf",
		fmt.Sprintf("Dir %q;\nDir::State::status \"/dev/null\";\nAPT::Sandbox::User \"root\";\nAPT::Architecture "+
			"\"amd64\";\n", r.dir))
	t.Setenv("APT_CONFIG", filepath.Join(r.dir, "apt.conf"))
	r.update(t)
	return r
}

func (r *repository) write(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join(r.dir, name)
	testkit.Succeed(t, os.MkdirAll(filepath.Dir(path), 0o755))
	testkit.Succeed(t, os.WriteFile(path, []byte(text), 0o644))
}

// update has apt read the repository's index.
func (r *repository) update(t *testing.T) {
	t.Helper()
	r.write(t, "pool/Packages", r.index)
	out, err := exec.Command("apt-get", "update").CombinedOutput()
	testkit.Require(t, err == nil, "apt-get update: %v: %s", err, out)
}

// add puts a package into the repository that holds what a kernel consists of.
func (r *repository) add(t *testing.T, name, version string, files map[string]string) {
	t.Helper()
	build := t.TempDir()
	tree := &repository{dir: build}
	control := fmt.Sprintf(
		"Package: %s\nVersion: %s\nArchitecture: amd64\nMaintainer: test <test@example.org>\nDescription: test\n",
		name, version)
	tree.write(t, "DEBIAN/control", control)
	for path, text := range files {
		tree.write(t, path, text)
	}
	deb := name + "_" + version + "_amd64.deb"
	out, err := exec.Command("dpkg-deb", "-b", build, filepath.Join(r.dir, "pool", deb)).CombinedOutput()
	testkit.Require(t, err == nil, "dpkg-deb: %v: %s", err, out)
	data := testkit.Must(os.ReadFile(filepath.Join(r.dir, "pool", deb)))(t)
	r.index += fmt.Sprintf("%sFilename: ./%s\nSize: %d\nSHA256: %x\n\n", control, deb, len(data), sha256.Sum256(data))
	r.update(t)
}

// kernelFiles are the files of a kernel package with one module.
func kernelFiles(release string) map[string]string {
	modules := "lib/modules/" + release
	return map[string]string{
		"boot/vmlinuz-" + release:       "image",
		modules + "/modules.order":      "kernel/overlay.ko\n",
		modules + "/modules.builtin":    "kernel/fuse.ko\n",
		modules + "/kernel/nothing.txt": "",
	}
}

func cloudKernel(level int) (name, version, release string) {
	release = fmt.Sprintf("6.12.%d+deb12-cloud-amd64", level)
	return "linux-image-" + release, fmt.Sprintf("6.12.%d-1~deb12u1", level), release
}

func (r *repository) addKernel(t *testing.T, level int) {
	t.Helper()
	name, version, release := cloudKernel(level)
	r.add(t, name, version, kernelFiles(release))
}

func fetch(t *testing.T, dir string, level int) Kernel {
	t.Helper()
	got := testkit.Must(FetchKernel(t.Context(), dir))(t)
	name, version, release := cloudKernel(level)
	base := filepath.Join(dir, name+"_"+version)
	want := Kernel{name + " " + version, release, filepath.Join(base, "boot/vmlinuz-"+release),
		filepath.Join(base, "lib/modules", release)}
	testkit.Check(t, got == want, "kernel %+v, want %+v", got, want)
	_, err := os.Stat(filepath.Join(got.Modules, modulesDep))
	testkit.Check(t, err == nil, "%v", err)
	return got
}

// TestFetchKernel fetches from a repository that changes.
func TestFetchKernel(t *testing.T) {
	r, dir := newRepository(t), filepath.Join(t.TempDir(), "kernels")
	if _, err := FetchKernel(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "apt-get update") {
		t.Errorf("without a package: %v", err)
	}
	// in this order, since 99 comes after 100 in an alphabet
	r.addKernel(t, 99)
	r.addKernel(t, 100)
	r.add(t, "linux-image-6.12.200+deb12-rt-amd64", "6.12.200-1", nil)
	r.add(t, "linux-image-6.13.1+deb12-cloud-amd64", "6.13.1-1", nil)
	r.add(t, "linux-image-6.12.300+deb12-cloud-amd64-dbg", "6.12.300-1", nil)
	first := fetch(t, dir, 100)
	before := testkit.Must(os.Stat(first.Image))(t)
	fetch(t, dir, 100)
	if after, err := os.Stat(first.Image); err != nil || !os.SameFile(before, after) {
		t.Errorf("fetched again: %v", err)
	}
	// one that lost a file is fetched anew
	testkit.Succeed(t, os.Remove(first.Image))
	fetch(t, dir, 100)
	entries, err := filepath.Glob(filepath.Join(dir, ".unpack-*"))
	testkit.Check(t, err == nil && len(entries) == 0, "left: %v, %v", entries, err)
}

// TestFetchTogether fetches from several processes' worth of goroutines at once.
func TestFetchTogether(t *testing.T) {
	r, dir := newRepository(t), t.TempDir()
	r.addKernel(t, 7)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			_, err := FetchKernel(t.Context(), dir)
			testkit.Check(t, err == nil, "%v", err)
		})
	}
	all.Wait()
	fetch(t, dir, 7)
}

// TestFetchBroken has a package without a kernel, and a lock that is held.
func TestFetchBroken(t *testing.T) {
	r, dir := newRepository(t), t.TempDir()
	name, version, _ := cloudKernel(8)
	r.add(t, name, version, map[string]string{"usr/share/doc/x": "x"})
	_, err := FetchKernel(t.Context(), dir)
	testkit.Check(t, err != nil, "a package without a kernel was taken")
	held := testkit.Must(lock.Take(t.Context(), dir, nil))(t)
	defer held.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = FetchKernel(ctx, dir)
	testkit.Check(t, errors.Is(err, context.DeadlineExceeded), "with the lock held: %v", err)
}

// TestMissing passes Run files that do not exist. It starts no process.
func TestMissing(t *testing.T) {
	good, _, _ := guestOptions(t, "true")
	for name, test := range map[string]struct {
		spoil   func(o *Options)
		culprit string
	}{
		"no command":   {func(o *Options) { o.Command = nil }, "no command"},
		"no kernel":    {func(o *Options) { o.Kernel = Kernel{} }, "kernel"},
		"image":        {func(o *Options) { o.Kernel.Image = "/no/image" }, "/no/image"},
		"modules":      {func(o *Options) { o.Kernel.Modules = "/no/modules" }, "/no/modules"},
		"a module":     {func(o *Options) { o.Modules = []string{"no-such"} }, "no-such"},
		"dir":          {func(o *Options) { o.Dir = "/no/dir" }, "/no/dir"},
		"dir is file":  {func(o *Options) { o.Dir = "/etc/passwd" }, "/etc/passwd"},
		"share":        {func(o *Options) { o.Share = "/no/share" }, "/no/share"},
		"init":         {func(o *Options) { o.Init = "/no/init" }, "/no/init"},
		"dynamic init": {func(o *Options) { o.Init = "/bin/bash" }, "not static"},
	} {
		t.Run(name, func(t *testing.T) {
			o := good
			test.spoil(&o)
			_, err := Run(t.Context(), o)
			testkit.Check(t, err != nil && strings.Contains(err.Error(), test.culprit) && !strings.Contains(err.Error(), "\n"),
				"error %v, want one line with %q", err, test.culprit)
		})
	}
	t.Run("QEMU", func(t *testing.T) {
		t.Setenv("PATH", t.TempDir())
		err := CheckTools(false)
		testkit.Check(t, err != nil && strings.HasSuffix(err.Error(), "is missing: apt install qemu-system-x86"),
			"error %v", err)
	})
}

// TestUncompress checks that the guests of tests boot an uncompressed kernel.
func TestUncompress(t *testing.T) {
	testkit.RequireRoot(t)
	testkit.RequireTool(t, qemu)
	testkit.RequireTool(t, "zstd")
	kernel := testkit.Must(fetchOnce())(t)
	name := filepath.Base(kernel.Image)
	testkit.Check(t, name == "vmlinux-"+kernel.Release, "guests boot %s", name)
}
