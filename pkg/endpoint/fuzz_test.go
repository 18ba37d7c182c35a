package endpoint

import (
	"encoding/json"
	"reflect"
	"testing"
)

// FuzzRecordIsKept reads records and writes them: the second reading gives the
// same endpoint, and fields of later releases stay.
func FuzzRecordIsKept(f *testing.F) {
	row := fullRow()
	b, err := marshalRecord(recordOf(&row, recordExtra{"later": json.RawMessage(`{"x":1}`)}))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	plain, err := marshalRecord(recordOf(&row, nil))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(plain)
	f.Add([]byte(`{"version":1,"id":7,"labels":["x"]}`))
	f.Add([]byte(`{"version":1,"id":7,"labels":["k8s:b=1","k8s:a","k8s:b=2"],"named-ports":[{"name":"a","protocol":6,"port":1},{"name":"a","protocol":6,"port":2}]}`))
	f.Add([]byte(`{"version":1,"id":7,"Labels":["k8s:a"],"LATER":1}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		rec, err := parseRecord(b, 7)
		if err != nil {
			return
		}
		r := rec.row()
		out, err := marshalRecord(recordOf(&r, rec.extra))
		if err != nil {
			t.Fatal(err)
		}
		rec2, err := parseRecord(out, 7)
		if err != nil {
			t.Fatalf("%s was written as %s: %v", b, out, err)
		}
		r2 := rec2.row()
		if !r.Created.Equal(r2.Created) || len(rec.extra) != len(rec2.extra) {
			t.Fatalf("%s was written as %s", b, out)
		}
		if r.Created = r2.Created; !equalRows(r, r2) {
			t.Fatalf("%s\nis %+v\nwritten and read again\n%+v", b, r, r2)
		}
	})
}

// equalRows compares what a record keeps; an empty map is as good as none.
func equalRows(a, b Row) bool {
	if len(a.RequestLabels)+len(b.RequestLabels) == 0 {
		a.RequestLabels, b.RequestLabels = nil, nil
	}
	return reflect.DeepEqual(a, b)
}
