// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
)

// TestShowAgain: an interface that the kernel has refused is shown to the program later.
func TestShowAgain(t *testing.T) {
	kerneltest.Require(t, kerneltest.BPFIngress)
	spec, err := loadProgram()
	if err != nil {
		t.Fatal(err)
	}
	only := spec.Maps["interfaces"]
	only.MaxEntries = 1
	m, err := ebpf.NewMap(only)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := m.Put(uint32(1), &programInterface{}); err != nil {
		t.Fatal(err)
	}
	e := &Engine{part: map[int]bool{2: true}, shown: map[int]uint8{}, veths: map[int]bool{2: false}}
	e.objects.Interfaces = m
	if err := e.show(); err == nil {
		t.Fatal("the map is not full")
	}
	if err := m.Delete(uint32(1)); err != nil {
		t.Fatal(err)
	}
	if err := e.show(); err != nil {
		t.Fatal(err)
	}
	var i programInterface
	if err := m.Lookup(uint32(2), &i); err != nil {
		t.Error(err)
	}
}
