-- The numbers of each type and day.
select
    type_path,
    bucket as day,
    numbers,
    min as least,
    max as largest,
    mean,
    last,
    cast(numbers as double) / events as quality
from {{ source('mariner', 'rollups') }}
where every = '1d' and numbers > 0
