// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestReadList(t *testing.T) {
	const list = `
{"ImportPath": "m/plain", "Dir": "/m/plain", "Name": "plain", "TestGoFiles": ["a_test.go"], "Deps": ["fmt"]}
{"ImportPath": "m/plain.test", "Dir": "/m/plain", "Name": "main", "Deps": ["fmt", "testing"]}
{"ImportPath": "m/plain [m/plain.test]", "Dir": "/m/plain", "Name": "plain", "ForTest": "m/plain", "TestGoFiles": ["a_test.go"]}
{"ImportPath": "m/far", "Dir": "/m/far", "Name": "far", "Module": {"Path": "m"}, "XTestGoFiles": ["a_test.go"]}
{"ImportPath": "m/far.test", "Dir": "/m/far", "Name": "main", "Deps": ["m/helper", "m/test/kernel/kerneltest"]}
{"ImportPath": "m/test/kernel/kerneltest", "Dir": "/m/test/kernel/kerneltest", "Name": "kerneltest", "TestGoFiles": ["a_test.go"]}
{"ImportPath": "m/test/kernel/kerneltest.test", "Dir": "/m/test/kernel/kerneltest", "Name": "main", "Deps": ["m/test/kernel/kerneltest [m/test/kernel/kerneltest.test]"]}
{"ImportPath": "m/none", "Dir": "/m/none", "Name": "none", "Deps": ["m/test/kernel/kerneltest"]}
{"ImportPath": "m/like", "Dir": "/m/like", "Name": "like", "TestGoFiles": ["a_test.go"]}
{"ImportPath": "m/like.test", "Dir": "/m/like", "Name": "main", "Deps": ["m/test/kerneltesting", "m/latest/kerneltest"]}
{"ImportPath": "m/broken", "Dir": "/m/broken", "Name": "", "Error": {"Err": "syntax error"}}
`
	packages, err := readList(strings.NewReader(list))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range packages {
		got = append(got, fmt.Sprint(p.path, " ", p.name, " ", p.dir, " ", p.kernel))
	}
	want := []string{
		"m/plain m/plain /m/plain false",
		"m/far ./far /m/far true",
		"m/test/kernel/kerneltest m/test/kernel/kerneltest /m/test/kernel/kerneltest true",
		"m/like m/like /m/like false",
		"m/broken m/broken /m/broken false",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}

	if _, err := readList(strings.NewReader(`{"ImportPath": "./x", "Error": {"Err": "no such directory"}}`)); err == nil || err.Error() != "no such directory" {
		t.Errorf("a pattern that names nothing: error %v", err)
	}
	if _, err := readList(strings.NewReader(`{`)); err == nil {
		t.Error("half a list: no error")
	}
}
